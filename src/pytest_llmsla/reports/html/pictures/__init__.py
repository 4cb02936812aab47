"""Pictures of a report as inline SVG, each with the table of its data. Drawn by matplotlib."""

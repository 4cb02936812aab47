"""The pytest side: options, marks, items, fixtures; how a run is planned, measured, reported."""

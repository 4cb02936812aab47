"""Running servers as targets: what is sent, what an event means, and how tokens are counted."""

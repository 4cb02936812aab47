"""A server whose send times are known, and what clients say compared with it."""

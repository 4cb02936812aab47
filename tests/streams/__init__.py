"""Scripted HTTP servers on a clock that only a script moves, and slow readings to check against."""

"""Targets of pytest-llmsla; see docs/architecture.md."""

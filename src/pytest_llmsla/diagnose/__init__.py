"""Diagnose of pytest-llmsla; see docs/architecture.md."""

"""How pytest runs a gate: the plan after collection, measuring, progress, report, exit status."""

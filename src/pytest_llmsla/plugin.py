"""pytest hooks and nothing else."""

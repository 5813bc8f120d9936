"""Slurm seen from Python: record an intent and submit it, watch and stop jobs, bring their results home."""

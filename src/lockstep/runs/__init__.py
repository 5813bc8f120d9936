"""The record of a run: its identity, its directory, run.json."""

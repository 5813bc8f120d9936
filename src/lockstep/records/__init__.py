"""Recorded runs seen again: rerun and compare."""

"""Metrics and provenance: the spool on disk first, MLflow behind it."""

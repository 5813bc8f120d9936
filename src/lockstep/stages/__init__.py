"""One file per stage, read like a table of contents."""

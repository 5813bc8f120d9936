"""The one checkpoint store: atomic write, manifest last, verify, prune, newest valid."""

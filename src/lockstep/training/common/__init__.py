"""What both trainers share: stopping, determinism, random state, throughput."""

"""Lockstep: what was locked is what ran, and anyone can run it again and be told whether it came out the same."""

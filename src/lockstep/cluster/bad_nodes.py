"""Nodes that a preflight found unfit, kept away from for a time: `runs/bad-nodes/<node>` holds `<expiry> <reason>`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BadNode:
    """One node and why; `expires` in seconds since the epoch."""

    name: str
    expires: int
    reason: str


def bad_nodes(runs: Path) -> list[BadNode]:
    """The nodes that new jobs keep away from now. The batch scripts write these files (slurm/lib/job.sh)."""
    found = []
    for path in sorted((runs / "bad-nodes").glob("[!.]*")):
        expires, _, reason = path.read_text(encoding="utf-8").strip().partition(" ")
        if expires.isdecimal() and int(expires) > time.time():
            found.append(BadNode(path.name, int(expires), reason))
    return found

"""Is there room for a save: bytes and inodes on disk, memory on the host. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from lockstep.foundation.errors import LockstepError

_SLACK_BYTES = 1 << 20
_RESERVE_BYTES = 256 << 20
"""Host memory that staging leaves alone: allocator, page tables, the other libraries of the process."""
_CGROUP = Path("/sys/fs/cgroup")


class NoRoomError(LockstepError):
    """A save that would not fit."""


@dataclass(frozen=True)
class Need:
    """What one rank's part of a save asks for."""

    host: str
    staged_bytes: int
    """New host memory for a copy of the state."""
    available_bytes: int
    """Host memory it could still get."""
    disk_bytes: int
    """Upper bound of what it writes."""
    num_files: int


def check_disk(root: Path, needs: Sequence[Need]) -> None:
    """Raises NoRoomError where the file system of `root` lacks bytes or inodes for a save beside its predecessor."""
    num_bytes = sum(need.disk_bytes for need in needs) + _SLACK_BYTES
    num_files = sum(need.num_files for need in needs) + 4  # two folders' worth of names, index, manifest
    stat = os.statvfs(root)
    free_bytes = stat.f_bavail * stat.f_frsize
    if free_bytes < num_bytes:
        raise NoRoomError(
            f"the checkpoint needs {num_bytes:,} bytes beside the one before it, and the file system of {root} has "
            f"{free_bytes:,} left; free some, or keep fewer checkpoints (run.save_total_limit)"
        )
    counts_inodes = stat.f_files > 0
    if counts_inodes and stat.f_favail < num_files:
        raise NoRoomError(
            f"the checkpoint needs {num_files} inodes and the file system of {root} has {stat.f_favail} left"
        )


def check_memory(needs: Sequence[Need]) -> None:
    """Raises NoRoomError where the copies of all ranks of one host don't fit into its memory beside what runs there."""
    for host in sorted({need.host for need in needs}):
        there = [need for need in needs if need.host == host]
        staged_bytes = sum(need.staged_bytes for need in there)
        available_bytes = min(need.available_bytes for need in there)
        if staged_bytes and staged_bytes + _RESERVE_BYTES > available_bytes:
            raise NoRoomError(
                f"an asynchronous save copies the state to host memory: {staged_bytes:,} bytes on {host}, plus "
                f"{_RESERVE_BYTES:,} in reserve, and {available_bytes:,} are available; set run.asynchronous_save to "
                "false, or give the job more memory"
            )


def available_memory_bytes() -> int:
    """Memory this process could still get: what the host has free and what its cgroups (a job, a container) allow."""
    limits = [psutil.virtual_memory().available]
    for limit, usage, stat in _cgroup_files():
        headroom = _headroom(limit, usage, stat)
        if headroom is not None:
            limits.append(headroom)
    return max(0, min(limits))


def _cgroup_files() -> list[tuple[Path, Path, Path]]:
    """Limit, usage and statistics of this process's memory cgroup and all above it, for cgroup v2 and v1."""
    found: list[tuple[Path, Path, Path]] = []
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = _CGROUP, ("memory.max", "memory.current", "memory.stat")
        elif "memory" in controllers.split(","):
            mount, names = _CGROUP / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
        else:
            continue
        for folder in (Path(path), *Path(path).parents):
            limit, usage, stat = (mount / str(folder).lstrip("/") / name for name in names)
            found.append((limit, usage, stat))
    return found


def _headroom(limit: Path, usage: Path, stat: Path) -> int | None:
    """Bytes below the limit; page cache that the kernel can drop counts as free. None where there is no limit."""
    try:
        maximum = limit.read_text(encoding="ascii").strip()
        if maximum == "max":
            return None
        lines = dict(line.split(" ", 1) for line in stat.read_text(encoding="ascii").splitlines())
        droppable = int(lines.get("total_inactive_file", lines.get("inactive_file", "0")))
        return int(maximum) - int(usage.read_text(encoding="ascii")) + droppable
    except (OSError, ValueError):
        return None

"""Where a run came from: commit and local changes, the machine's hardware class, DVC experiment, Slurm job.

Gathered on the host before anything starts (a container may have no git and distrusts a checkout that another user
owns), as plain data. What identifies a person (user, host name) or opens a door (tokens, other variables) is left out.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.foundation.files import sha256_bytes, write_atomic
from lockstep.foundation.processes import capture

UNKNOWN = "unknown"
DIFF_FILE = "dirty.diff"
"""The local changes, kept beside run.json."""

_GIT = ("git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
# dvc.lock changes between the stages of one pipeline; what it locks is in the run's own locks.
_WITHOUT_LOCK = ("--", ".", ":(exclude)dvc.lock")
_MAX_NAMES = 50
_SLURM = {
    "SLURM_JOB_ID": "job_id",
    "SLURM_ARRAY_JOB_ID": "array_job_id",
    "SLURM_ARRAY_TASK_ID": "array_task_id",
    "SLURM_RESTART_COUNT": "restart_count",
    "SLURM_JOB_NUM_NODES": "num_nodes",
    "SLURM_JOB_PARTITION": "partition",
    "SLURM_CLUSTER_NAME": "cluster",
}
# From the most to the least capable; torch and oneDNN pick their kernels by these (other kernels, other bits).
_ISA_LEVELS = ("amx_tile", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "sve", "asimd", "sse4_2")


def gather(project: Path, keep_diff: Path | None = None) -> dict[str, Any]:
    """The facts as they stand in run.json below `provenance`.

    With `keep_diff` the local changes of tracked files are written to that file; the facts hold their sha256 alone.
    """
    diff = _git(project, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", *_WITHOUT_LOCK)
    if keep_diff and diff:
        write_atomic(keep_diff, diff.encode("utf-8", "surrogateescape"))
    return {
        "git": git_facts(project, diff),
        "hardware": hardware(),
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "dvc": {"exp_name": variables().get("DVC_EXP_NAME")},
        "slurm": slurm(),
    }


def variables() -> Mapping[str, str]:
    """The one door of this room to the environment of the calling process."""
    return os.environ


def slurm() -> dict[str, str]:
    """The Slurm job this process runs in; empty outside of one."""
    return {name: variables()[key] for key, name in _SLURM.items() if key in variables()}


def git_facts(project: Path, diff: str | None) -> dict[str, Any]:
    """Commit, branch and what differs from the commit; `unknown` where git or the repository is not there."""
    commit = _line(project, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": UNKNOWN, "branch": UNKNOWN, "dirty": UNKNOWN}
    status = _git(project, "status", "--porcelain", *_WITHOUT_LOCK) or ""
    changed = [line[3:] for line in status.splitlines()]
    remote = _line(project, "remote", "get-url", "origin")
    return {
        "commit": commit,
        "branch": _line(project, "rev-parse", "--abbrev-ref", "HEAD") or UNKNOWN,
        "dirty": bool(changed),
        "changed": changed[:_MAX_NAMES],
        "num_changed": len(changed),
        "diff_sha256": sha256_bytes(diff.encode("utf-8", "surrogateescape")) if diff else None,
        "remote": without_credentials(remote) if remote else None,
    }


def without_credentials(url: str) -> str:
    """The URL with `user:password@` removed."""
    return re.sub(r"(?<=://)[^/@]*@", "", url)


def hardware() -> dict[str, Any]:
    """What decides bits beside the software: CPU model and instruction set level, or GPU model and driver."""
    cpu = _cpu()
    gpus = _gpus()
    kinds = sorted({f"{gpu['model']}, driver {gpu['driver']}" for gpu in gpus})
    return {"class": " + ".join(kinds) or f"{platform.machine()} {cpu['isa']}", "cpu": cpu, "gpus": gpus}


def _cpu() -> dict[str, Any]:
    info = _read(Path("/proc/cpuinfo"))
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    flags_line = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    flags = set(flags_line[1].split()) if flags_line else set()
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    return {
        "model": model[1].strip() if model else platform.machine(),
        "isa": next((level for level in _ISA_LEVELS if level in flags), UNKNOWN),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(memory[1]) * 1024 if memory else None,
    }


def _gpus() -> list[dict[str, Any]]:
    rows = capture(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"])
    gpus = []
    for row in (rows or "").splitlines():
        name, driver, memory_mib = (cell.strip() for cell in row.split(","))
        gpus.append({"model": name, "driver": driver, "memory_bytes": int(memory_mib) * 2**20})
    return gpus


def _git(project: Path, *args: str) -> str | None:
    return capture([*_GIT, *args], cwd=project)


def _line(project: Path, *args: str) -> str | None:
    answer = _git(project, *args)
    return answer.strip() if answer else None


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

"""`lockstep doctor`: what is on this machine, what is missing, and how to mend it. Looks only; changes nothing."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lockstep.engines.environment import check_installed, image_facts, read_image_lock
from lockstep.engines.select import engines
from lockstep.foundation.errors import LockstepError
from lockstep.foundation.processes import capture

_GIB = 1 << 30
_MIN_FREE_BYTES = 10 * _GIB
_MIN_SHM_BYTES = 2 * _GIB
_CUDA_13_DRIVER = (580, 0)
"""Oldest Linux driver for CUDA 13 (CUDA compatibility guide), which the locked `cuda` wheels bring."""
_SHARED = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "cifs", "panfs"}


@dataclass(frozen=True)
class Finding:
    """One line of the report. `state`: fine, note (works, but know this) or bad."""

    topic: str
    state: str
    text: str
    mend: str = ""


def examine(project: Path, runs: Path) -> list[Finding]:
    """Every check; a check that cannot tell says so instead of guessing."""
    checks: list[Callable[[], list[Finding]]] = [
        lambda: _environments(project),
        lambda: _engines(project),
        _user_namespaces,
        _subordinate_ids,
        _fuse,
        _driver,
        _shared_memory,
        lambda: _space(project, runs),
        lambda: _dvc_locks(project),
    ]
    return [finding for check in checks for finding in check()]


def _environments(project: Path) -> list[Finding]:
    python = f"Python {sys.version.split()[0]} in {sys.prefix}{' (an image)' if image_facts() else ''}"
    found = [Finding("python", "fine", python)]
    for flavour in read_image_lock(project)["environments"]:
        try:
            check_installed(project, flavour)
        except LockstepError as error:
            found.append(
                Finding(f"environment {flavour}", "note", str(error).splitlines()[0], str(error).splitlines()[-1])
            )
        else:
            found.append(Finding(f"environment {flavour}", "fine", "every file is the locked one"))
    return found


def _engines(project: Path) -> list[Finding]:
    found = []
    for name, engine in engines(project).items():
        for flavour in read_image_lock(project)["environments"]:
            reason = engine.unavailable(flavour) if name != "host" else None
            what, _, mend = (reason or "ready").partition("; ")
            found.append(Finding(f"engine {name} ({flavour})", "note" if reason else "fine", what, mend))
    versions = [capture(["apptainer", "--version"]), capture(["docker", "--version"])]
    shown = ", ".join(version.strip() for version in versions if version)
    return [*found, Finding("versions", "fine", shown or "neither Apptainer nor Docker is here")]


def _user_namespaces() -> list[Finding]:
    limits = {"kernel.unprivileged_userns_clone": "0", "user.max_user_namespaces": "0"}
    for name, off in limits.items():
        path = Path("/proc/sys") / name.replace(".", "/")
        if path.exists() and path.read_text().strip() == off:
            return [
                Finding("user namespaces", "bad", f"{name} is {off}: Apptainer cannot start", f"sysctl -w {name}=1")
            ]
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if restricted.exists() and restricted.read_text().strip() == "1":
        mend = "an AppArmor profile for apptainer, or the site's setuid Apptainer"
        return [Finding("user namespaces", "note", "AppArmor restricts them", mend)]
    return [Finding("user namespaces", "fine", "allowed")]


def _subordinate_ids() -> list[Finding]:
    user = pwd.getpwuid(os.getuid()).pw_name if _known(os.getuid()) else str(os.getuid())
    for name in ("subuid", "subgid"):
        path = Path("/etc") / name
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if not any(line.split(":")[0] in {user, str(os.getuid())} for line in lines):
            text = f"/etc/{name} has no line for {user}: images cannot be built from the base with --fakeroot"
            return [
                Finding(
                    "subordinate ids", "note", text, "build from the Docker archive, or ask an administrator for one"
                )
            ]
    return [Finding("subordinate ids", "fine", f"{user} has them")]


def _known(uid: int) -> bool:
    return any(entry.pw_uid == uid for entry in pwd.getpwall())


def _fuse() -> list[Finding]:
    if not Path("/dev/fuse").exists():
        return [
            Finding("fuse", "note", "no /dev/fuse: Apptainer unpacks a SIF to a folder at every start", "modprobe fuse")
        ]
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return [Finding("fuse", "bad", "/dev/fuse is not open to you: a SIF cannot be mounted", "chmod 666 /dev/fuse")]
    return [Finding("fuse", "fine", "/dev/fuse is open to you")]


def _driver() -> list[Finding]:
    shown = capture(["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"])
    if not shown:
        return [Finding("gpu", "note", "no NVIDIA GPU answers here; the cpu flavour needs none")]
    version, _, name = shown.splitlines()[0].partition(", ")
    numbers = tuple(int(part) for part in version.split(".")[:2])
    text = f"{len(shown.splitlines())} × {name}, driver {version}"
    if numbers < _CUDA_13_DRIVER:
        return [Finding("gpu", "bad", f"{text}: too old for the CUDA 13 of the cuda flavour", "driver 580 or newer")]
    return [Finding("gpu", "fine", text)]


def _shared_memory() -> list[Finding]:
    total = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").exists() else 0
    text = f"/dev/shm has {total / _GIB:.1f} GiB"
    if total < _MIN_SHM_BYTES:
        return [Finding("shared memory", "bad", f"{text}: NCCL and data loaders need more", "--shm-size or --ipc=host")]
    return [Finding("shared memory", "fine", text)]


def _space(project: Path, runs: Path) -> list[Finding]:
    found = []
    for topic, path in (("project", project), ("runs", runs), ("/tmp", Path("/tmp"))):
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        free, kind = shutil.disk_usage(existing).free, _file_system(existing)
        text = f"{path}: {free / _GIB:.0f} GiB free on {kind}"
        if free < _MIN_FREE_BYTES:
            found.append(Finding(f"space {topic}", "bad", text, "LOCKSTEP_RUNS names another place for runs"))
        elif kind in _SHARED and topic == "project":
            mend = "dvc config --local core.hardlink_lock true"
            found.append(Finding(f"space {topic}", "note", f"{text}, where file locks are unreliable", mend))
        else:
            found.append(Finding(f"space {topic}", "fine", text))
    return found


def _file_system(path: Path) -> str:
    mounts = [part for part in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"


def _dvc_locks(project: Path) -> list[Finding]:
    path = project / ".dvc" / "tmp" / "rwlock"
    try:
        entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except json.JSONDecodeError:
        return [Finding("dvc locks", "bad", f"{path} is torn", f"rm {path}")]
    owners = {(row["pid"], row["cmd"]) for entry in entries.values() for row in _lock_rows(entry)}
    alive = [f"{command} (pid {pid})" for pid, command in sorted(owners) if psutil.pid_exists(pid)]
    dead = [str(pid) for pid, _ in sorted(owners) if not psutil.pid_exists(pid)]
    if alive:
        return [Finding("dvc locks", "note", f"held by {', '.join(alive)}", "wait for it, or end that process")]
    if dead:
        text = f"left by pid {', '.join(dead)}, which is not on this machine"
        return [Finding("dvc locks", "note", text, f"rm {path}, unless another node runs dvc in this folder")]
    return [Finding("dvc locks", "fine", "nobody holds them")]


def _lock_rows(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """DVC notes one writer or several readers per path."""
    return [*([entry["write"]] if entry.get("write") else []), *entry.get("read", [])]


def table(findings: list[Finding]) -> str:
    """For people: one line a finding, what to do below it."""
    marks = {"fine": "ok  ", "note": "note", "bad": "BAD "}
    width = max(len(finding.topic) for finding in findings)
    rows = []
    for finding in findings:
        rows.append(f"{marks[finding.state]}  {finding.topic:<{width}}  {finding.text}")
        if finding.mend:
            rows.append(f"{'':<{width + 8}}→ {finding.mend}")
    return "\n".join(rows)

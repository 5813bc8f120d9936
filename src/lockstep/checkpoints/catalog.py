"""The folder of checkpoints seen from outside: which there are, which are whole. Needs no torch."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lockstep.checkpoints.manifest import FileEntry, Manifest, UnusableError, read_manifest
from lockstep.foundation.files import sha256_file

_STEP = re.compile(r"step-(\d+)")
_READERS = 4
"""Files hashed at one time: a thread hashes about 2 GB/s, file systems of clusters give more."""
_TEMPORARY = re.compile(r"\.step-\d+\.[0-9a-f]+\.tmp")


def step_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of `step` stands once it is whole."""
    return root / f"step-{step}"


def temporary_folder(root: Path, step: int) -> Path:
    """A fresh name beside it, on the same file system, that no reader takes for a checkpoint."""
    return root / f".step-{step}.{uuid.uuid4().hex[:12]}.tmp"


def list_steps(root: Path) -> list[int]:
    """The steps that have a folder under `root`, ascending; whether they are whole is not looked at."""
    if not root.is_dir():
        return []
    names = (_STEP.fullmatch(path.name) for path in root.iterdir())
    return sorted(int(match[1]) for match in names if match)


def leftovers(root: Path) -> list[Path]:
    """Temporary folders: a save that was killed, or a removal that was."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if _TEMPORARY.fullmatch(path.name))


def remove_checkpoint(root: Path, step: int) -> None:
    """Removes a checkpoint so that a kill in between leaves a temporary name and never half a checkpoint."""
    doomed = temporary_folder(root, step)
    step_folder(root, step).rename(doomed)
    shutil.rmtree(doomed)


def usable_manifest(folder: Path, run_id: str | None = None) -> tuple[Manifest, str]:
    """The manifest in `folder` and its sha256. Raises UnusableError, also for a checkpoint of another run."""
    manifest, digest = read_manifest(folder)
    if run_id is not None and manifest.run_id != run_id:
        raise UnusableError(f"it belongs to run {manifest.run_id}, not to {run_id}")
    return manifest, digest


def damages(folder: Path, manifest: Manifest, names: Iterable[str]) -> list[str]:
    """Compares the named files with the manifest, sizes first; returns what is wrong, empty when all is well."""
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(lambda name: _damage(folder / name, manifest.files[name]), sorted(names))
        return [damage for damage in found if damage]


def _damage(path: Path, entry: FileEntry) -> str | None:
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            return f"{path.name} has {size} bytes instead of {entry.bytes}"
        if sha256_file(path) != entry.sha256:
            return f"{path.name} does not have the hash it was written with"
    except OSError as error:
        return f"{path.name} can't be read: {error.strerror}"
    return None


def share(manifest: Manifest, rank: int, world_size: int) -> list[str]:
    """The files that `rank` of `world_size` checks: its own, or a fair part by bytes if the number of ranks differs."""
    if world_size == manifest.world_size:
        return [name for name, entry in manifest.files.items() if entry.rank == rank]
    loads = [0] * world_size
    mine: list[str] = []
    for name, entry in sorted(manifest.files.items(), key=lambda item: (-item[1].bytes, item[0])):
        lightest = loads.index(min(loads))
        loads[lightest] += entry.bytes
        if lightest == rank:
            mine.append(name)
    return mine

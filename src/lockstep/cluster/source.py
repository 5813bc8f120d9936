"""The copy of the sources that a job runs: what was submitted is what runs, however the checkout changes meanwhile."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from lockstep.foundation.files import canonical_json, sha256_bytes, sha256_file, tree_files

_ROOTS = ("src", "slurm", "requirements", "rewards", "recipes", "params.yaml", "image.lock", "dvc.yaml", "lockstep")
_ID_LENGTH = 16


def keep_source(checkout: Path, runs: Path) -> Path:
    """Copies what a job needs of the checkout to `runs/source/<hash of it>` and returns that folder.

    Submitting the same sources again copies nothing. The folder is never written to afterwards.
    """
    files = [path for root in _ROOTS if (checkout / root).exists() for path in tree_files(checkout / root)]
    names = {path.relative_to(checkout).as_posix(): sha256_file(path) for path in files}
    folder = runs / "source" / sha256_bytes(canonical_json(names).encode())[:_ID_LENGTH]
    if not folder.exists():
        _copy(checkout, list(names), folder)
    return folder


def _copy(checkout: Path, names: list[str], folder: Path) -> None:
    staging = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        for name in names:
            target = staging / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, target)
        _rename(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _rename(staging: Path, folder: Path) -> None:
    try:
        staging.rename(folder)
    except OSError:
        if not folder.exists():  # another submit, of the same sources, may have come first
            raise

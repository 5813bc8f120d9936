"""A folder with exactly the files that a lock names, so that an image or an air-gapped site needs no index."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from lockstep.engines.lockfile import Pin, lock_path, read_lock
from lockstep.engines.locking import locked_files
from lockstep.foundation.errors import LockstepError
from lockstep.foundation.files import sha256_bytes, sha256_file, write_atomic

COMPLETE = ".complete"
"""Holds the sha256 of the two locks that the folder was filled for; scripts/install.sh compares it."""


def wheelhouse_path(project: Path, flavour: str) -> Path:
    """The wheelhouse of one flavour; git ignores it."""
    return project / "wheelhouse" / flavour


def wanted_pins(project: Path, flavour: str) -> dict[str, Pin]:
    """What a wheelhouse must hold: the flavour's lock and the tools, uv among them, with which a venv is made."""
    return {**read_lock(lock_path(project, "dev")), **read_lock(lock_path(project, flavour))}


def fill_wheelhouse(project: Path, flavour: str, say: Callable[[str], None]) -> Path:
    """Downloads what is missing and returns the folder; every file in it has a hash of the locks afterwards.

    Raises LockstepError when a download fails; what came whole stays and is not fetched again.
    """
    folder = wheelhouse_path(project, flavour)
    folder.mkdir(parents=True, exist_ok=True)
    pins = wanted_pins(project, flavour)
    hashes = {pin.sha256 for pin in pins.values()}
    (folder / COMPLETE).unlink(missing_ok=True)
    held = {sha256_file(path): path for path in folder.iterdir()}
    for digest in set(held) - hashes:
        held[digest].unlink()
    missing = {name: pin for name, pin in pins.items() if pin.sha256 not in held}
    if missing:
        say(f"downloading {len(missing)} of {len(pins)} files to {folder}")
        _download(project, flavour, missing, folder)
    _check_complete(folder, hashes)
    locks = [lock_path(project, name).read_bytes() for name in (flavour, "dev")]
    write_atomic(folder / COMPLETE, sha256_bytes(b"".join(locks)))
    return folder


def _download(project: Path, flavour: str, missing: dict[str, Pin], folder: Path) -> None:
    urls = {**locked_files(project, "dev"), **locked_files(project, flavour)}
    with tempfile.TemporaryDirectory(prefix="lockstep-wheelhouse-") as temporary:
        listed = Path(temporary) / "files.txt"
        lines = [f"{name} @ {urls[name].url} --hash=sha256:{pin.sha256}" for name, pin in missing.items()]
        listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
        # A source distribution's name is read by running its build: with the locked setuptools, not with a fresh one.
        options = ["--no-deps", "--no-index", "--no-build-isolation", "--require-hashes", "--quiet"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "-r", str(listed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LockstepError(f"the wheelhouse could not be filled:\n{done.stderr.strip()[-2000:]}\nRepeat the command.")


def _check_complete(folder: Path, hashes: set[str]) -> None:
    lacking = hashes - {sha256_file(path) for path in folder.iterdir()}
    if lacking:
        raise LockstepError(f"{folder} lacks {len(lacking)} of the locked files after the download; repeat the command")

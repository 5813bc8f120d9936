"""Hash-locked requirements: what a lock says, and the environment id that follows from it.

A lock of this project holds exactly one hash per package, that of the wheel for CPython 3.11 on Linux x86_64 (or of
the source where no wheel exists), so that a venv, an image and a SIF made from it hold the same files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lockstep.foundation.errors import DoNotRetryError, UsageError
from lockstep.foundation.files import sha256_bytes

FLAVOURS = ("cpu", "cuda")
PYTHON_MINOR = "3.11"
_ID_LENGTH = 16
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s\\;]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """One locked package: normalised name, version, sha256 of the file that is installed."""

    name: str
    version: str
    sha256: str


def lock_path(project: Path, name: str) -> Path:
    """The lock of a flavour (`cpu`, `cuda`) or of a helper set (`dev`, `data`)."""
    return project / "requirements" / f"{name}.lock"


def normalised(name: str) -> str:
    """A package name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(path: Path) -> dict[str, Pin]:
    """Reads a lock. Raises UsageError when it is missing, DoNotRetryError when a package has not exactly one hash."""
    if not path.exists():
        raise UsageError(f"{path} is missing; `git checkout {path.name}` brings it back, `make lock` makes it anew")
    pins: dict[str, Pin] = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", path.read_text(encoding="utf-8")):
        pin = _PIN.match(entry)
        if pin is None:
            continue
        hashes = _HASH.findall(entry)
        if len(hashes) != 1:
            raise DoNotRetryError(
                f"{path}: {pin['name']} has {len(hashes)} hashes, one is needed; `make lock` keeps the platform's own"
            )
        name = normalised(pin["name"])
        pins[name] = Pin(name, pin["version"], hashes[0])
    return pins


def environment_id_of(pins: dict[str, Pin]) -> str:
    """The id of the environment that a lock describes: 16 hex digits of sha256 over Python minor and all pins.

    Lockstep itself is no part of it: its code enters a run's identity by content.
    """
    rows = [f"{pin.name}=={pin.version} sha256:{pin.sha256}" for pin in pins.values() if pin.name != "lockstep"]
    text = "\n".join([f"python {PYTHON_MINOR} linux x86_64", *sorted(rows)])
    return sha256_bytes(text.encode())[:_ID_LENGTH]

"""What a checkpoint says about itself: one JSON file, written last, guarded by its own hash. Needs no torch."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lockstep.foundation.errors import LockstepError
from lockstep.foundation.files import canonical_json, sha256_bytes, write_json

FORMAT = 1
"""Raised whenever an older reader could misread what is written now."""
MANIFEST_NAME = "manifest.json"
_SELF = "manifest_sha256"


class UnusableError(LockstepError):
    """A checkpoint that must not be resumed from; the text is the reason."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint."""

    bytes: int
    sha256: str
    rank: int
    """Who wrote it, and who checks it when as many ranks load as saved."""


@dataclass(frozen=True)
class TensorEntry:
    """The whole tensor, over all ranks."""

    dtype: str
    """As torch names it, without the prefix: `float32`."""
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """What one checkpoint holds and where it comes from."""

    run_id: str
    step: int
    world_size: int
    files: dict[str, FileEntry]
    holds: dict[str, TensorEntry]
    facts: dict[str, Any] = field(default_factory=dict)
    """The caller's JSON: token counts, scheduler, data position."""
    metric: float | None = None
    base_sha256: str | None = None
    """Manifest hash of the frozen base below the saved weights; None where all weights are saved."""
    format: int = FORMAT

    @property
    def num_bytes(self) -> int:
        """Bytes of all files on disk, the manifest left out."""
        return sum(entry.bytes for entry in self.files.values())

    def summary(self) -> str:
        """One line for people: how many tensors of which type, how many bytes, by how many ranks."""
        dtypes = Counter(entry.dtype for entry in self.holds.values())
        kinds = ", ".join(f"{count} {dtype}" for dtype, count in sorted(dtypes.items()))
        return f"step {self.step}: {kinds} tensors, {self.num_bytes:,} bytes, written by {self.world_size} rank(s)"

    def write(self, folder: Path) -> str:
        """Writes the manifest into `folder`, durably; returns its own sha256, which it also carries."""
        content = asdict(self)
        digest = _digest(content)
        write_json(folder / MANIFEST_NAME, {**content, _SELF: digest})
        return digest


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Reads and checks the manifest in `folder`; returns it with its sha256.

    Raises UnusableError where it is missing, damaged, or of an unknown format.
    """
    try:
        content = json.loads((folder / MANIFEST_NAME).read_bytes())
    except FileNotFoundError:
        raise UnusableError(f"no {MANIFEST_NAME}: it was never finished") from None
    except (OSError, ValueError) as error:
        raise UnusableError(f"{MANIFEST_NAME} can't be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise UnusableError(f"unknown format {found!r}; this version of Lockstep reads format {FORMAT}")
    digest = content.pop(_SELF, None)
    if digest != _digest(content):
        raise UnusableError(f"{MANIFEST_NAME} does not have the hash it was written with")
    return _from_json(content), digest


def _digest(content: dict[str, Any]) -> str:
    return sha256_bytes(canonical_json(content).encode())


def _from_json(content: dict[str, Any]) -> Manifest:
    files = {name: FileEntry(**entry) for name, entry in content.pop("files").items()}
    holds = {name: TensorEntry(e["dtype"], tuple(e["shape"])) for name, e in content.pop("holds").items()}
    return Manifest(files=files, holds=holds, **content)

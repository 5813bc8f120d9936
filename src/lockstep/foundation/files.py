"""The one place that writes a file whole: temporary name, fsync, rename, fsync of the folder; and content hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20


def fsync_directory(path: Path) -> None:
    """Makes the names inside `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes `content` to `path` so that a reader sees the old file or the whole new one, never a part.

    Raises OSError (a full disk, say) with the temporary file removed and the old file untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no NaN. What is hashed and what is locked is written this way."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as readable JSON with sorted keys, atomically."""
    write_atomic(path, json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def sha256_bytes(data: bytes) -> str:
    """Hex sha256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, read in chunks."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def tree_files(root: Path) -> list[Path]:
    """The files under `root` (or `root` itself) that count, sorted: no bytecode, no temporary files."""
    if root.is_file():
        return [root]
    found = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(path for path in found if path.suffix not in (".pyc", ".tmp"))


def sha256_tree(root: Path) -> str:
    """Hex sha256 over the sorted (relative path, file sha256) pairs under `root`. Modes and times do not count."""
    digest = hashlib.sha256()
    for path in tree_files(root):
        name = path.name if path == root else path.relative_to(root).as_posix()
        digest.update(f"{name}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def replace_tree(source: Path, target: Path) -> None:
    """Copies the folder `source` to `target`; whatever stood at `target` is gone only once the copy is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        shutil.copytree(source, staging)
        if target.exists():
            shutil.rmtree(target)
        staging.replace(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)

"""What a fetched folder holds: file → size, sha256, where it came from, under which licence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.foundation.files import read_json, sha256_file, tree_files, write_json

MANIFEST = "manifest.json"


def describe(folder: Path, names: list[str], **facts: Any) -> dict[str, dict[str, Any]]:
    """The manifest entries of some files below `folder`; `facts` (source, licence) are noted with each."""
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_file(folder / name), **facts} for name in names
    }


def describe_all(folder: Path, **facts: Any) -> dict[str, dict[str, Any]]:
    """The manifest entries of all files below `folder` but its manifest."""
    names = [path.relative_to(folder).as_posix() for path in tree_files(folder)]
    return describe(folder, [name for name in names if name != MANIFEST and not name.startswith(".")], **facts)


def write_manifest(path: Path, files: dict[str, dict[str, Any]], **facts: Any) -> None:
    """Writes the manifest last, when all that it lists is in place."""
    write_json(path, {"files": files, **facts})


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest at `path`, or one without files."""
    return dict(read_json(path)) if path.exists() else {"files": {}}


def damaged(folder: Path, files: dict[str, dict[str, Any]]) -> list[str]:
    """The names of listed files that are absent or not what the manifest says."""
    return [name for name, expected in files.items() if not _is_whole(folder / name, expected)]


def _is_whole(path: Path, expected: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == expected["bytes"] and sha256_file(path) == expected["sha256"]

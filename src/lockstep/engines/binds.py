"""Which host paths a stage may see, and the checks that turn a silent surprise into a message before the start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lockstep.engines.base import Bind, LaunchRequest
from lockstep.foundation.errors import UsageError

_CACHE_MARK = ("files", "md5")
"""DVC keeps content below `<cache>/files/md5`."""


def resolved_binds(request: LaunchRequest) -> list[Bind]:
    """The project (read-only: a stage writes to its run alone), scratch and the declared binds, parents first.

    A path named through a symbolic link is bound under both names, so that either works inside. Where links inside a
    bind lead elsewhere (a DVC cache of type symlink), that place is bound too, read-only. A bind that another one
    already covers with the same rights is left out.
    """
    wanted = [Bind(request.project), Bind(request.scratch, writable=True), *request.binds]
    rights: dict[Path, bool] = {}
    for bind in wanted:
        for path in {bind.path, bind.path.resolve()}:
            rights[path] = rights.get(path, False) or bind.writable
    for bind in request.binds:
        for path in link_targets(bind.path):
            rights.setdefault(path, False)
    kept: list[Bind] = []
    for path in sorted(rights, key=lambda p: (len(p.parts), str(p))):
        if not _covered(path, rights[path], kept):
            kept.append(Bind(path, rights[path]))
    return kept


def _covered(path: Path, writable: bool, kept: list[Bind]) -> bool:
    covering = [bind for bind in kept if path.is_relative_to(bind.path) and path.resolve().is_relative_to(bind.path)]
    return bool(covering) and covering[-1].writable == writable


def link_targets(path: Path) -> set[Path]:
    """The folders outside `path` that symbolic links in it lead to; of a DVC cache, the whole cache."""
    return {_shared_root(target) for target in _links_below(path) if not target.is_relative_to(path.resolve())}


def _links_below(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        yield path.resolve()
    if path.is_dir():
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield Path(entry.path).resolve()
                elif entry.is_dir(follow_symlinks=False):
                    yield from _links_below(Path(entry.path))


def _shared_root(target: Path) -> Path:
    parts = target.parts
    for index in range(len(parts) - 1):
        if parts[index : index + 2] == _CACHE_MARK:
            return Path(*parts[:index])
    return target.parent


def check_binds(request: LaunchRequest) -> None:
    """Raises UsageError for a bind that is missing, or not writable where the stage must write."""
    for bind in (Bind(request.project), Bind(request.scratch, writable=True), *request.binds):
        if not bind.path.exists():
            raise UsageError(f"{bind.path} is to be seen by the stage but does not exist; make it or correct the path")
        if bind.writable and not os.access(bind.path, os.W_OK):
            raise UsageError(f"{bind.path} is not writable for you; the stage writes there. Change its owner or mode.")
    if not (request.project / "params.yaml").exists():
        raise UsageError(f"{request.project} is no Lockstep project: there is no params.yaml in it")

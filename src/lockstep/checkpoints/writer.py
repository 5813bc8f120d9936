"""One save from a snapshot to a standing checkpoint: shards, hashes, manifest last, rename. All ranks act together."""

from __future__ import annotations

import hashlib
import io
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lockstep.checkpoints.catalog import step_folder, temporary_folder
from lockstep.checkpoints.manifest import FileEntry, Manifest
from lockstep.checkpoints.pieces import Piece, holdings, replica_digests
from lockstep.checkpoints.ranks import RankError, Ranks
from lockstep.checkpoints.shards import INDEX_NAME, write_shards
from lockstep.foundation.errors import LockstepError
from lockstep.foundation.files import fsync_directory, sha256_file, write_atomic


class ReplicaError(LockstepError):
    """Ranks hold different values of a tensor that must be the same on all of them."""


@dataclass(frozen=True)
class Snapshot:
    """Everything one rank puts into one checkpoint; nothing in it changes any more."""

    step: int
    run_id: str
    pieces: Mapping[str, Piece]
    rank_state: bytes
    """This rank's own state, serialised by `pack`."""
    facts: dict[str, Any]
    metric: float | None
    base_sha256: str | None


@dataclass(frozen=True)
class Saved:
    """A checkpoint that stands."""

    step: int
    path: Path
    manifest_sha256: str
    num_bytes: int


@dataclass(frozen=True)
class _Written:
    files: dict[str, FileEntry]
    digests: dict[str, str]


def rank_state_name(rank: int) -> str:
    """The file with one rank's own state."""
    return f"rank-{rank:05d}.pt"


def pack(per_rank: Mapping[str, Any]) -> bytes:
    """Serialises a rank's own state and proves that `torch.load(weights_only=True)` reads it back.

    Raises LockstepError naming the first key that would need pickle.
    """
    packed = _serialise(dict(per_rank))
    if not _loads_safely(packed):
        guilty = [key for key, value in per_rank.items() if not _loads_safely(_serialise(value))]
        raise LockstepError(
            f"checkpoint: per-rank state '{guilty[0]}' can't be loaded without pickle "
            f"({type(per_rank[guilty[0]]).__name__}); give tensors, numbers, strings, lists and dicts"
        )
    return packed


def write_checkpoint(root: Path, snapshot: Snapshot, ranks: Ranks) -> Saved:
    """Writes `snapshot` beside its predecessors; it gets its final name once every rank's part is on disk.

    Collective. Raises RankError (a full disk, on whichever rank) or ReplicaError, on all ranks, with the temporary
    folder gone and every standing checkpoint untouched.
    """
    folder = ranks.main("making the checkpoint folder", lambda: _make_folder(root, snapshot.step))
    try:
        shards = write_shards(folder, snapshot.pieces, ranks)
        parts = ranks.agree("writing rank state", lambda: _finish_part(folder, snapshot, shards, ranks.rank))
        _compare_replicas([part.digests for part in parts], snapshot.step)
        return ranks.main("finishing the checkpoint", lambda: _publish(root, folder, snapshot, parts))
    except (RankError, ReplicaError):
        ranks.main("removing what was written", lambda: shutil.rmtree(folder, ignore_errors=True))
        raise


def _make_folder(root: Path, step: int) -> Path:
    folder = temporary_folder(root, step)
    folder.mkdir(parents=True)
    return folder


def _finish_part(folder: Path, snapshot: Snapshot, shards: dict[str, tuple[int, str]], rank: int) -> _Written:
    name = rank_state_name(rank)
    write_atomic(folder / name, snapshot.rank_state)
    fsync_directory(folder)
    files = {file: FileEntry(size, sha256, rank) for file, (size, sha256) in shards.items()}
    files[name] = FileEntry(len(snapshot.rank_state), hashlib.sha256(snapshot.rank_state).hexdigest(), rank)
    return _Written(files, replica_digests(snapshot.pieces))


def _compare_replicas(digests: list[dict[str, str]], step: int) -> None:
    for name in digests[0]:
        values = [per_rank.get(name) for per_rank in digests]
        if len(set(values)) > 1:
            raise ReplicaError(
                f"step {step} was not saved: '{name}' must be the same on every rank and is not (ranks "
                f"{', '.join(str(r) for r, v in enumerate(values) if v != values[0])} differ from rank 0); "
                "a resume would silently make them equal. Gradients or initial values are not synchronised"
            )


def _publish(root: Path, folder: Path, snapshot: Snapshot, parts: list[_Written]) -> Saved:
    files = {name: entry for part in parts for name, entry in part.files.items()}
    index = folder / INDEX_NAME
    files[INDEX_NAME] = FileEntry(index.stat().st_size, sha256_file(index), 0)
    _check_seen_from_here(folder, files)
    manifest = Manifest(
        run_id=snapshot.run_id,
        step=snapshot.step,
        world_size=len(parts),
        files=files,
        holds=holdings(snapshot.pieces),
        facts=snapshot.facts,
        metric=snapshot.metric,
        base_sha256=snapshot.base_sha256,
    )
    digest = manifest.write(folder)
    target = step_folder(root, snapshot.step)
    _rename(root, folder, target)
    return Saved(snapshot.step, target, digest, manifest.num_bytes)


def _check_seen_from_here(folder: Path, files: Mapping[str, FileEntry]) -> None:
    for name, entry in files.items():
        if not (folder / name).exists():
            raise LockstepError(
                f"rank {entry.rank} wrote {name}, but rank 0 does not see it in {folder}: "
                "the runs folder (LOCKSTEP_RUNS) must be on a file system that all nodes share"
            )


def _rename(root: Path, folder: Path, target: Path) -> None:
    """Puts the finished folder in place. One of that step which stands there was skipped at resume: it goes."""
    doomed: Path | None = None
    if target.exists():
        doomed = temporary_folder(root, int(target.name.removeprefix("step-")))
        target.rename(doomed)
    folder.rename(target)
    fsync_directory(root)
    if doomed is not None:
        shutil.rmtree(doomed, ignore_errors=True)


def _serialise(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _loads_safely(packed: bytes) -> bool:
    try:
        torch.load(io.BytesIO(packed), weights_only=True)
    except pickle.UnpicklingError:
        return False
    return True

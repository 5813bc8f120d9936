"""From the folder of checkpoints back into memory: the newest that verifies, and its tensors in place."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from lockstep.checkpoints.catalog import damages, list_steps, share, step_folder, usable_manifest
from lockstep.checkpoints.manifest import Manifest, TensorEntry, UnusableError
from lockstep.checkpoints.pieces import dtype_from_name, dtype_name
from lockstep.checkpoints.ranks import ALONE, Ranks
from lockstep.checkpoints.shards import ShardReader, read_shards
from lockstep.checkpoints.writer import rank_state_name
from lockstep.foundation.errors import DoNotRetryError, LockstepError, UsageError, nearest

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Skipped:
    """A checkpoint that was passed over."""

    step: int
    reason: str


@dataclass(frozen=True)
class Found:
    """A checkpoint whose files were read and are what its manifest says."""

    path: Path
    manifest: Manifest
    manifest_sha256: str
    skipped: tuple[Skipped, ...] = ()

    @property
    def step(self) -> int:
        """Steps done when it was saved."""
        return self.manifest.step


@dataclass(frozen=True)
class Loaded:
    """What a checkpoint holds beside its tensors."""

    step: int
    per_rank: dict[str, Any] | None
    """This rank's own state; None where another number of ranks saved it, because then no rank has a successor."""
    facts: dict[str, Any]


def find_newest(root: Path, run_id: str, ranks: Ranks, verify: Literal["own", "full"] = "own") -> Found | None:
    """The newest checkpoint of `run_id` under `root` that verifies; None where there is none at all. Collective.

    With "own" each rank reads the files that it wrote (a fair share, if the number of ranks differs); with "full" every
    rank reads all. What is skipped is logged with its reason. Raises DoNotRetryError where checkpoints stand and none
    is usable, because starting again from step 0 without a word would throw the work away.
    """
    skipped: list[Skipped] = []
    for step in ranks.main("listing checkpoints", lambda: list_steps(root))[::-1]:
        found = _try(step_folder(root, step), run_id, ranks, verify)
        if isinstance(found, Found):
            return Found(found.path, found.manifest, found.manifest_sha256, tuple(skipped))
        skipped.append(Skipped(step, found))
        if ranks.is_main:
            logger.warning("skipped checkpoint %s: %s", step_folder(root, step), found)
    if skipped:
        reasons = "\n".join(f"  step-{s.step}: {s.reason}" for s in skipped)
        raise DoNotRetryError(
            f"no checkpoint in {root} can be resumed from:\n{reasons}\n"
            "To start again from step 0, move that folder away (or set LOCKSTEP_FRESH=1)."
        )
    return None


def find_step(root: Path, step: int, run_id: str) -> Found:
    """The checkpoint of `run_id` after exactly `step` steps, every file of it verified, in one process.

    Raises UsageError naming the steps there are, DoNotRetryError where it can't be used.
    """
    steps = list_steps(root)
    if step not in steps:
        raise UsageError(f"{root} has no checkpoint of step {step}; there are: {', '.join(map(str, steps)) or 'none'}.")
    found = _try(step_folder(root, step), run_id, ALONE, "full")
    if isinstance(found, str):
        raise DoNotRetryError(f"checkpoint {step_folder(root, step)} can't be used: {found}")
    return found


class WholeTensors:
    """The tensors of a checkpoint one at a time, whole, in one process, whatever number of ranks wrote them."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self._reader = ShardReader(found.path)

    def num_bytes(self, prefix: str) -> int:
        """Bytes of the tensors whose names begin with `prefix`."""
        held = [entry for name, entry in self.found.manifest.holds.items() if name.startswith(prefix)]
        return sum(math.prod(entry.shape) * dtype_from_name(entry.dtype).itemsize for entry in held)

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor on the CPU, in its saved dtype. Raises LockstepError unless it is there in that shape."""
        entry = self.found.manifest.holds.get(name)
        wanted = TensorEntry(entry.dtype if entry else "float32", shape)
        tensor = torch.empty(shape, dtype=dtype_from_name(wanted.dtype))
        _check_same(self.found, {name: tensor}, partial=True)
        read_shards(self._reader, {name: tensor}, ALONE)
        return tensor


def load_checkpoint(found: Found, tensors: Mapping[str, Tensor], ranks: Ranks, *, partial: bool = False) -> Loaded:
    """Fills `tensors` (plain or DTensor, any sharding) in place from `found`. Collective.

    Names, shapes and dtypes must be those of the checkpoint; with `partial` it may hold more. Raises LockstepError.
    """
    ranks.agree("loading the checkpoint", lambda: _check_same(found, tensors, partial))
    with torch.no_grad():
        read_shards(ShardReader(found.path), dict(tensors), ranks)
    per_rank = ranks.agree("loading rank state", lambda: _rank_state(found, ranks))[ranks.rank]
    return Loaded(found.step, per_rank, found.manifest.facts)


def _try(folder: Path, run_id: str, ranks: Ranks, verify: Literal["own", "full"]) -> Found | str:
    """The checkpoint, or why not; all ranks come to the same verdict."""
    verdict = ranks.main("reading a manifest", lambda: _manifest_or_reason(folder, run_id))
    if isinstance(verdict, str):
        return verdict
    manifest, digest = verdict
    names = list(manifest.files) if verify == "full" else share(manifest, ranks.rank, ranks.world_size)
    found = ranks.agree("verifying", lambda: damages(folder, manifest, names))
    reasons = sorted({damage for per_rank in found for damage in per_rank})
    return "; ".join(reasons) if reasons else Found(folder, manifest, digest)


def _manifest_or_reason(folder: Path, run_id: str) -> tuple[Manifest, str] | str:
    try:
        return usable_manifest(folder, run_id)
    except UnusableError as reason:
        return str(reason)


def _check_same(found: Found, tensors: Mapping[str, Tensor], partial: bool) -> None:
    holds = found.manifest.holds
    for name, tensor in tensors.items():
        wanted = TensorEntry(dtype_name(tensor.dtype), tuple(tensor.shape))
        if name not in holds:
            raise LockstepError(f"{found.path} does not hold '{name}'.{nearest(name, holds)}")
        if holds[name] != wanted:
            raise LockstepError(f"{found.path} holds '{name}' as {_show(holds[name])}, the run has {_show(wanted)}")
    unread = sorted(set(holds) - set(tensors))
    if unread and not partial:
        raise LockstepError(f"{found.path} holds {len(unread)} tensors that nothing asked for, such as '{unread[0]}'")


def _show(entry: TensorEntry) -> str:
    return f"{entry.dtype}{list(entry.shape)}"


def _rank_state(found: Found, ranks: Ranks) -> dict[str, Any] | None:
    if found.manifest.world_size != ranks.world_size:
        return None
    state = torch.load(found.path / rank_state_name(ranks.rank), map_location="cpu", weights_only=True)
    assert isinstance(state, dict)
    return state

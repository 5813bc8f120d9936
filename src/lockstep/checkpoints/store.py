"""The face of the room: `save`, `newest`, `load`, `wait`. Every method is collective: all ranks call it, in one order.

A save returns when the checkpoint stands, or with `asynchronous` when the state is copied; then a background thread
writes it, on a gloo group of its own, while training goes on. One save at a time: the next one waits for it.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor

from lockstep.checkpoints import space
from lockstep.checkpoints.background import Background
from lockstep.checkpoints.catalog import leftovers, list_steps, remove_checkpoint, step_folder, usable_manifest
from lockstep.checkpoints.manifest import UnusableError
from lockstep.checkpoints.pieces import Piece, Staging, pieces_of
from lockstep.checkpoints.ranks import RankError, Ranks
from lockstep.checkpoints.reading import Found, Loaded, Skipped, find_newest, load_checkpoint
from lockstep.checkpoints.retention import Retention
from lockstep.checkpoints.writer import Saved, Snapshot, pack, write_checkpoint
from lockstep.foundation.errors import DoNotRetryError, LockstepError

logger = logging.getLogger(__name__)
__all__ = ["CheckpointStore", "Found", "Loaded", "Retention", "Saved", "Skipped"]

_BYTES_PER_TENSOR = 4096
"""More than torch.save's archive adds to a tensor's bytes."""


class CheckpointStore:
    """The checkpoints of one run under `root`. Opening it is collective and removes what dead attempts left."""

    def __init__(
        self,
        root: Path,
        *,
        run_id: str,
        retention: Retention | None = None,
        group: dist.ProcessGroup | None = None,
        asynchronous: bool = False,
        on_failure: Literal["stop", "continue"] = "stop",
        base_sha256: str | None = None,
    ) -> None:
        """`group`: a gloo group of all ranks that nothing else uses; by default the store makes its own.

        `on_failure`: what a save that can't be written does, raise LockstepError or warn and let training go on; either
        way the checkpoint before it stands. `base_sha256`: manifest hash of a frozen base, checked at load.
        """
        self.root = root
        self._run_id = run_id
        self._retention = retention or Retention()
        self._ranks = Ranks.create(group)
        self._asynchronous = asynchronous
        self._on_failure = on_failure
        self._base_sha256 = base_sha256
        self._staging = Staging()
        self._background: Background[Saved] = Background()
        self._saved: Saved | None = None
        self._standing: dict[int, float | None] = {}
        self._damaged: set[int] = set()
        self._ranks.main("opening the checkpoint store", self._open)

    @property
    def last_saved(self) -> Saved | None:
        """The newest checkpoint that this store wrote or loaded, the same on all ranks.

        One that is written in the background counts after the next `wait` or `save`.
        """
        return self._saved

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        *,
        per_rank: Mapping[str, Any],
        facts: Mapping[str, Any],
        metric: float | None = None,
    ) -> None:
        """Saves the state after `step` steps (at least 1). Does nothing where this store saved that step already.

        `tensors`: name → Tensor (the same on all ranks) or DTensor. `per_rank`: this rank's own state, readable by
        `torch.load(weights_only=True)`. `facts`: JSON. `metric`: for keeping the best.
        Raises LockstepError for a failed save under `on_failure="stop"`, here or, if asynchronous, at the next call.
        """
        if step < 1:
            raise LockstepError("before the first step there is no state to save: a resume would skip the warm-up")
        self.wait()
        if self._saved is not None and self._saved.step == step:
            return
        snapshot = self._snapshot(step, pieces_of(tensors, self._ranks.rank), per_rank, facts, metric)
        try:
            if self._asynchronous and self._admit(snapshot):
                staged = replace(snapshot, pieces=self._staging.copy(snapshot.pieces))
                self._background.start(step, lambda: self._write(staged))
            else:
                self._saved = self._write(snapshot)
        except RankError as error:
            self._on_failed_save(step, error)

    def wait(self) -> None:
        """Waits for a save in flight; returns once it stands. Raises as `save` does. Call it at stop and at exit."""
        try:
            self._saved = self._background.join() or self._saved
        except RankError as error:
            self._on_failed_save(self._background.step, error)

    def confirm(self, step: int) -> None:
        """Waits, and raises LockstepError unless the checkpoint of `step` stands. Call it before saying "saved"."""
        self.wait()
        if self._saved is None or self._saved.step != step:
            raise LockstepError(f"step {step} is not saved (see the failed save above); what it adds is lost")

    def newest(
        self, *, verify: Literal["own", "full"] = "own", root: Path | None = None, run_id: str | None = None
    ) -> Found | None:
        """The newest checkpoint that verifies, or None where there is none (see `find_newest`).

        `root` and `run_id` name another run to continue from; its folder is only read. Raises DoNotRetryError where
        checkpoints stand and none is usable, or where the found one belongs to another base model.
        """
        found = find_newest(root or self.root, run_id or self._run_id, self._ranks, verify)
        if found is None:
            return None
        if found.manifest.base_sha256 != self._base_sha256:
            raise DoNotRetryError(
                f"{found.path} was trained on the base {found.manifest.base_sha256}, this run has {self._base_sha256}: "
                "its weights mean nothing there. Restore that base model, or start a new run"
            )
        if found.path.parent == self.root:
            ours = {skipped.step for skipped in found.skipped} & set(self._standing)
            self._damaged |= ours
            self._standing = {step: metric for step, metric in self._standing.items() if step not in ours}
        return found

    def load(self, found: Found, tensors: Mapping[str, Tensor], *, partial: bool = False) -> Loaded:
        """Fills `tensors` in place, whatever their sharding; returns the rest (see `load_checkpoint`)."""
        loaded = load_checkpoint(found, tensors, self._ranks, partial=partial)
        if found.path.parent == self.root and not partial:
            self._saved = Saved(found.step, found.path, found.manifest_sha256, found.manifest.num_bytes)
        return loaded

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Lets a save in flight finish, also when training failed: the state it holds is good."""
        try:
            self.wait()
        except Exception:
            if error is None:
                raise
            logger.exception("the save in flight failed, too")

    def _open(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        for path in leftovers(self.root):
            logger.info("removing %s, which a dead attempt left", path)
            shutil.rmtree(path)
        for step in list_steps(self.root):
            try:
                self._standing[step] = usable_manifest(step_folder(self.root, step), self._run_id)[0].metric
            except UnusableError:
                continue  # `newest` says so, and what isn't ours to judge is never removed

    def _snapshot(
        self,
        step: int,
        pieces: dict[str, Piece],
        per_rank: Mapping[str, Any],
        facts: Mapping[str, Any],
        metric: float | None,
    ) -> Snapshot:
        return Snapshot(
            step=step,
            run_id=self._run_id,
            pieces=pieces,
            rank_state=pack(per_rank),
            facts=json.loads(json.dumps(facts, allow_nan=False)),
            metric=metric if metric is not None and math.isfinite(metric) else None,
            base_sha256=self._base_sha256,
        )

    def _admit(self, snapshot: Snapshot) -> bool:
        """Whether the copy fits into every host's memory; where it does not, the save is synchronous and says why."""
        needs = self._needs(snapshot)
        try:
            space.check_memory(needs)
        except space.NoRoomError as reason:
            if self._ranks.is_main:
                logger.warning("saving synchronously instead: %s", reason)
            return False
        return True

    def _needs(self, snapshot: Snapshot) -> list[space.Need]:
        counted = [piece for piece in snapshot.pieces.values() if piece.first_replica]
        need = space.Need(
            host=socket.gethostname(),
            staged_bytes=self._staging.new_bytes(snapshot.pieces),
            available_bytes=space.available_memory_bytes(),
            disk_bytes=sum(piece.nbytes + _BYTES_PER_TENSOR for piece in counted) + len(snapshot.rank_state),
            num_files=2,
        )
        return self._ranks.agree("measuring the save", lambda: need)

    def _write(self, snapshot: Snapshot) -> Saved:
        needs = self._needs(snapshot)
        self._ranks.main("checking the disk", lambda: space.check_disk(self.root, needs))
        saved = write_checkpoint(self.root, snapshot, self._ranks)
        if self._ranks.is_main:
            self._prune(saved, snapshot.metric)
        return saved

    def _prune(self, saved: Saved, metric: float | None) -> None:
        self._standing[saved.step] = metric
        self._damaged.discard(saved.step)
        reached = {step: value for step, value in self._standing.items() if step <= saved.step}
        gone = [*self._retention.expired(reached), *(step for step in self._damaged if step < saved.step)]
        for step in gone:
            try:
                remove_checkpoint(self.root, step)
            except OSError as error:
                logger.warning("checkpoint step-%d could not be removed: %s", step, error)
            self._standing.pop(step, None)
            self._damaged.discard(step)

    def _on_failed_save(self, step: int, error: RankError) -> None:
        before = f"step {self._saved.step} in {self._saved.path} stands" if self._saved else "there is none before it"
        text = f"the checkpoint of step {step} was not saved; {before}. {error}"
        if self._on_failure == "stop":
            raise LockstepError(f"{text}\nFree the cause and run the same command again.") from error
        if self._ranks.is_main:
            logger.warning("%s; training goes on (run.on_save_failure: continue)", text)

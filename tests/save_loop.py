"""Ranks that do nothing but save, for tests/integration/test_checkpoints_killed.py, which kills them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from lockstep.checkpoints.store import CheckpointStore, Found, Retention


def state_of(step: int) -> dict[str, torch.Tensor]:
    """What step number `step` leaves behind: anything else in a checkpoint of that step is a mixture."""
    return {f"w{i}": torch.arange(300.0) * step + i for i in range(4)}


def check(store: CheckpointStore, found: Found) -> None:
    """Raises AssertionError where `found` does not hold exactly the state of its step."""
    tensors = {name: torch.zeros(300) for name in state_of(0)}
    loaded = store.load(found, tensors)
    assert loaded.facts == {"step": found.step}
    wanted = state_of(found.step)
    assert all(torch.equal(tensors[name], wanted[name]) for name in wanted), f"step-{found.step} holds another state"


def save_forever(rank: int, root: Path, asynchronous: bool) -> None:
    """Goes on from the newest checkpoint and saves step after step."""
    store = CheckpointStore(root, run_id="killed", retention=Retention(2, keep_every=7), asynchronous=asynchronous)
    found = store.newest()
    if found is not None:
        check(store, found)
    step = found.step if found is not None else 0
    while True:
        step += 1
        dist.all_reduce(torch.ones(1))
        store.save(step, state_of(step), per_rank={"rank": rank, "step": step}, facts={"step": step})

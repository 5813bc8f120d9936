"""The ranks of a training job: who this process is, which device it owns, and the process groups it speaks on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """This process among its peers. `device` is chosen here and nowhere else."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    control: dist.ProcessGroup
    """A gloo group of all ranks for small facts (stop, errors), apart from training's collectives."""

    @property
    def is_main(self) -> bool:
        """True on the one rank that speaks and writes."""
        return self.rank == 0


@contextmanager
def joined_ranks(collective_timeout_s: float) -> Iterator[Ranks]:
    """Joins the process group of the launcher (or makes one of a single process) and leaves it at the end.

    gloo serves CPU tensors, NCCL the accelerator's. Accelerate reads the device from the environment, so it is told.
    """
    rank, world_size, local_rank = (int(os.environ.get(name, default)) for name, default in _FROM_LAUNCHER)
    device = _own_device(local_rank)
    if device.type == "cpu":
        os.environ["ACCELERATE_USE_CPU"] = "true"
    timeout = timedelta(seconds=collective_timeout_s)
    store = dist.HashStore() if world_size == 1 else None  # type: ignore[attr-defined]
    backend = "cpu:gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    try:
        control = dist.new_group(backend="gloo", timeout=timeout)
        yield Ranks(rank, world_size, local_rank, device, control)
    finally:
        dist.destroy_process_group()


_FROM_LAUNCHER = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def _own_device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)

"""How long a save keeps training waiting: synchronous against asynchronous, two FSDP2 ranks on this machine.

    python benchmarks/save_stall.py [--parameters 16000000] [--rounds 7] [--folder DIR]

Two quantities, each the maximum over ranks. `blocked_s`: seconds that the training thread spends in `save`. `wall_s`:
the save and the steps behind it, until the checkpoint stands. `none` trains the same steps without a save: with all
cores busy, the background thread takes its time from training, and `wall_s` shows how much.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from _runner import interleaved, report, summarise
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lockstep.checkpoints.optimizer import OptimizerState
from lockstep.checkpoints.store import CheckpointStore, Retention

NUM_RANKS = 2
NUM_LAYERS = 8
STEPS_PER_SAVE = 4


class Training:
    """A stack of sharded linear layers under AdamW; one per rank."""

    def __init__(self, num_parameters: int) -> None:
        width = int((num_parameters / NUM_LAYERS) ** 0.5)
        torch.manual_seed(0)
        self.net = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(NUM_LAYERS)))
        mesh = init_device_mesh("cpu", (NUM_RANKS,))
        for layer in self.net:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.rows = torch.randn(16, width)
        self.steps(1)

    def steps(self, num_steps: int) -> None:
        """Trains."""
        for _ in range(num_steps):
            self.net(self.rows).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """Weights and both moments."""
        moments = OptimizerState(self.optimizer, self.net.named_parameters()).tensors()
        return {**dict(self.net.named_parameters()), **moments}


def save_and_train(training: Training, store: CheckpointStore | None, counter: list[int]) -> dict[str, float]:
    """One save, if there is a store, and the steps behind it."""
    dist.barrier()
    counter[0] += 1
    begin = time.perf_counter()
    if store is not None:
        store.save(counter[0], training.state(), per_rank={}, facts={})
    blocked_s = time.perf_counter() - begin
    training.steps(STEPS_PER_SAVE)
    if store is not None:
        store.wait()
    slowest = torch.tensor([blocked_s, time.perf_counter() - begin])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return {"blocked_s": slowest[0].item(), "wall_s": slowest[1].item()}


def measure(rank: int, num_parameters: int, rounds: int, folder: Path) -> None:
    """What each rank runs; rank 0 reports."""
    torch.set_num_threads(1)
    rendezvous = dist.FileStore(str(folder / "rendezvous"), NUM_RANKS)
    dist.init_process_group("gloo", store=rendezvous, rank=rank, world_size=NUM_RANKS)
    training, counter = Training(num_parameters), [0]
    stores = {
        name: CheckpointStore(folder / name, run_id="bench", retention=Retention(1), asynchronous=asynchronous)
        for name, asynchronous in (("synchronous", False), ("asynchronous", True))
    }
    variants = {
        name: partial(save_and_train, training, store, counter) for name, store in {"none": None, **stores}.items()
    }
    samples = interleaved(variants, rounds=rounds)
    if rank == 0:
        state_bytes = 12 * num_parameters
        setup = {"ranks": NUM_RANKS, "parameters": num_parameters, "state": f"{state_bytes / 1e6:.0f} MB"}
        report("save stall, seconds per save", setup, summarise(samples, baseline="synchronous"))
    dist.destroy_process_group()


def main() -> None:
    """Parses the command line and starts the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=16_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="where checkpoints go (default: a temporary folder)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        mp.spawn(measure, (arguments.parameters, arguments.rounds, folder), nprocs=NUM_RANKS)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

"""A training small enough for a test that has what checkpoints stumble over.

Uneven and empty shards, a bf16 tensor, a 0-d parameter, replicated adapters, dropout from the global generator, AdamW
with two groups and a schedule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from lockstep.checkpoints.optimizer import OptimizerState
from lockstep.checkpoints.store import CheckpointStore, Found
from lockstep.training.common import random_state


class Net(nn.Module):
    """Seven hidden units on two ranks are 4 + 3; a head of one row leaves the second rank empty."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 1)
        self.narrow = nn.Linear(7, 1, bias=False, dtype=torch.bfloat16)

    def forward(self, rows: Tensor) -> Tensor:
        """(batch, 5) → (batch, 1)."""
        hidden = nn.functional.dropout(torch.tanh(self.first(rows)), 0.3)
        return self.second(hidden) + self.narrow(hidden.bfloat16()).float()


class Toy:
    """One rank's model, adapter, optimizer and schedule; sharded where torch.distributed is set up."""

    def __init__(self, seed: int, root: Path, **store: Any) -> None:
        torch.manual_seed(seed)
        self.net = Net()
        self.adapter = nn.ParameterDict({"low": torch.randn(2, 5), "scale": torch.tensor(1.0)})
        if dist.is_initialized():
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            fully_shard(self.net.narrow, mesh=mesh)
            fully_shard(self.net, mesh=mesh)
        named = dict(self.named())
        decayed = [p for p in named.values() if p.dim() > 1]
        rest = [p for p in named.values() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.95))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0 / (1 + step))
        self.state = OptimizerState(self.optimizer, self.named())
        self.step = 0
        self.store = CheckpointStore(root, **{"run_id": "toy", **store})

    def named(self) -> Iterable[tuple[str, Tensor]]:
        """Trainable parameters by name."""
        yield from ((f"net.{name}", p) for name, p in self.net.named_parameters())
        yield from ((f"adapter.{name}", p) for name, p in self.adapter.items())

    def train(self, num_steps: int) -> None:
        """Steps whose data depend on step and rank, and whose dropout depends on the global generator."""
        for _ in range(num_steps):
            rank = dist.get_rank() if dist.is_initialized() else 0
            rows = torch.randn(4, 5, generator=torch.Generator().manual_seed(1000 * self.step + rank))
            rows = rows + rows @ self.adapter["low"].T @ self.adapter["low"] * self.adapter["scale"]
            self.net(rows).square().mean().backward()
            self._average_replicated()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.step += 1

    def _average_replicated(self) -> None:
        if dist.is_initialized():
            for parameter in self.adapter.values():
                dist.all_reduce(parameter.grad)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint of it holds."""
        return {**dict(self.named()), **self.state.tensors()}

    def save(self, **more: Any) -> None:
        """Saves everything that decides the next step."""
        facts = {"optimizer": self.state.facts(), "schedule": self.schedule.state_dict(), "step": self.step}
        per_rank = {"random": random_state.capture()}
        facts["schedule"].pop("lr_lambdas")
        self.store.save(self.step, self.tensors(), per_rank=per_rank, facts=facts, **more)

    def load(self, found: Found) -> bool:
        """Goes on from `found`; whether this rank's generators went on, too."""
        facts = found.manifest.facts
        tensors = {**dict(self.named()), **self.state.allocate(found.manifest.holds, facts["optimizer"])}
        loaded = self.store.load(found, tensors)
        self.schedule.load_state_dict({**facts["schedule"], "lr_lambdas": [None, None]})
        self.step = loaded.step
        if loaded.per_rank is not None:
            random_state.restore(loaded.per_rank["random"])
        return loaded.per_rank is not None

    def resume(self) -> Found:
        """Loads the newest checkpoint."""
        found = self.store.newest()
        assert found is not None
        self.load(found)
        return found

    def digest(self) -> str:
        """A hash of all weights and moments, whole; the same on every rank."""
        return digest(self.tensors())


def digest(tensors: dict[str, Tensor]) -> str:
    """A hash over names, dtypes and bytes of whole tensors. Collective for DTensors."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        raw = whole.detach().contiguous().flatten().view(torch.uint8).numpy()
        sha.update(f"{name} {whole.dtype} {tuple(whole.shape)}".encode() + raw.tobytes())
    return sha.hexdigest()

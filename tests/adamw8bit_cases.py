"""What two ranks do for tests/integration/test_adamw8bit.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from lockstep.checkpoints.optimizer import OptimizerState
from lockstep.checkpoints.store import CheckpointStore
from lockstep.training.sft.adamw8bit import AdamW8bit

NUM_STEPS = 5
Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def model() -> nn.Sequential:
    """Two matrices whose rows are whole blocks, an odd one whose rows are not, and vectors; uneven over two ranks."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, 33), nn.Tanh(), nn.Linear(33, 512), nn.LayerNorm(512), nn.Linear(512, 17, bias=False)
    )


def sharded() -> nn.Sequential:
    """The same model, its rows on two ranks."""
    made = model()
    mesh = init_device_mesh("cpu", (2,))
    for layer in (made[0], made[2], made[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    return made


def optimizer_of(made: nn.Module) -> AdamW8bit:
    """With everything on that an update can have."""
    return AdamW8bit(made.parameters(), lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1)


def steps(made: nn.Module, optimizer: AdamW8bit, numbers: range) -> None:
    """Steps on batches that depend on the step alone; every rank sees the whole batch, so that gradients are equal."""
    for number in numbers:
        inputs = torch.randn(8, 256, generator=torch.Generator().manual_seed(number))
        made(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def weights(made: nn.Module) -> Weights:
    """Whole parameters by name, as arrays: a tensor would be gone with the process that made it."""
    return {name: whole(parameter).clone().numpy() for name, parameter in made.named_parameters()}


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def on_two_ranks(rank: int, folder: Path) -> dict[str, Any]:
    """Five steps at once; three, a save, and two more from what was loaded."""
    made = sharded()
    optimizer = optimizer_of(made)
    steps(made, optimizer, range(NUM_STEPS))
    first, second = sharded(), sharded()
    before = optimizer_of(first)
    steps(first, before, range(3))
    with CheckpointStore(folder / "checkpoints", run_id="r") as store:
        state = OptimizerState(before, first.named_parameters())
        parameters = {name: parameter.detach() for name, parameter in first.named_parameters()}
        store.save(3, {**parameters, **state.tensors()}, per_rank={}, facts={"optimizer": state.facts()})
        after = optimizer_of(second)
        found = store.newest()
        assert found is not None
        slots = OptimizerState(after, second.named_parameters())
        allocated = slots.allocate(found.manifest.holds, found.manifest.facts["optimizer"])
        store.load(found, {**{n: p.detach() for n, p in second.named_parameters()}, **allocated})
    steps(second, after, range(3, NUM_STEPS))
    state_bytes = sum(
        local.numel() * local.element_size()
        for kept in optimizer.state.values()
        for value in kept.values()
        if isinstance(value, Tensor)
        for local in [value.to_local() if isinstance(value, DTensor) else value]
    )
    return {"weights": weights(made), "resumed": weights(second), "state_bytes": state_bytes}


def load_on_one(folder: Path) -> Weights:
    """What two ranks saved, gone on with by one process that holds everything."""
    made = model()
    optimizer = optimizer_of(made)
    with CheckpointStore(folder / "checkpoints", run_id="r") as store:
        found = store.newest()
        assert found is not None
        slots = OptimizerState(optimizer, made.named_parameters())
        allocated = slots.allocate(found.manifest.holds, found.manifest.facts["optimizer"])
        store.load(found, {**{name: p.detach() for name, p in made.named_parameters()}, **allocated})
    steps(made, optimizer, range(3, NUM_STEPS))
    return weights(made)

"""A world without memory: fake tensors, and one rank of a process group whose other ranks do not exist.

The model is built on the meta device by the functions that training uses (adapters included: PEFT cannot build in fake
mode), then its parameters become fake CPU tensors, which can be sharded, gathered and trained without holding a byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.distributed.utils import TransformersDeviceMesh, initialize_distributed_mesh

from lockstep.models.sharding import Layout, one_rank_mesh
from lockstep.params.model import PrecisionParams


def fake_mode() -> FakeTensorMode:
    """A fake mode that takes real constants (a position table made outside of it, say) as they come."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def fake_ranks(layout: Layout, precision: PrecisionParams) -> Iterator[TransformersDeviceMesh]:
    """Rank 0 of a process group in which collectives do nothing, and its mesh. One at a time in a process."""
    dist.init_process_group("fake", rank=0, world_size=layout.num_ranks, store=FakeStore())
    try:
        if layout.num_ranks == 1:
            yield one_rank_mesh("cpu")
        else:
            yield initialize_distributed_mesh(layout.distributed_config(precision))[1]
    finally:
        dist.destroy_process_group()


def materialize(model: nn.Module, mode: FakeTensorMode) -> None:
    """Turns every parameter and buffer that is on the meta device into a fake CPU tensor; tied ones stay tied."""
    made: dict[int, Tensor] = {}
    with mode, torch.no_grad():
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and tensor.is_meta and not isinstance(tensor, FakeTensor):
                        tensors[name] = made.setdefault(id(tensor), _on_cpu(tensor))  # type: ignore[assignment]


def _on_cpu(tensor: Tensor) -> Tensor:
    fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
    for name, value in vars(tensor).items():  # what quantised layers note on their weights
        setattr(fake, name, value)
    return fake


class FullBatches(TorchFunctionMode):
    """Answers what depends on data as the fullest batch would: all masks are full, all checks are passed.

    Fake tensors hold no data, so code that picks the rows of a mask, or asks whether all are finite, cannot run on
    them. `truth` is what a yes-or-no question on a tensor is answered with.
    """

    def __init__(self, *, truth: bool = True) -> None:
        super().__init__()
        self._truth = truth

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and _is_mask(args[1]):
            tensor, mask = args
            return tensor.reshape(-1, *tensor.shape[mask.ndim :]).clone()
        if func is Tensor.masked_scatter and _is_mask(args[1]):
            return args[2].reshape(args[0].shape).clone()
        if func is Tensor.index_put and len(args[1]) == 1 and _is_mask(args[1][0]):
            return args[2].reshape(args[0].shape).clone()
        if func is Tensor.__bool__ and isinstance(args[0], FakeTensor):
            return self._truth
        if func in _READS and isinstance(args[0], FakeTensor):
            return _plausible(func, args[0])
        return func(*args, **(kwargs or {}))


_READS = (Tensor.item, Tensor.tolist, Tensor.__float__, Tensor.__int__)


def _plausible(func: Any, tensor: Tensor) -> Any:
    """What a read gives: one, so that nothing is divided by zero and no gradient looks lost."""
    value = 1.0 if tensor.is_floating_point() else 1
    if func is Tensor.tolist and tensor.ndim:
        return [value] * tensor.numel()
    return float(value) if func is Tensor.__float__ else value


def _is_mask(index: Any) -> bool:
    return isinstance(index, FakeTensor) and index.dtype == torch.bool

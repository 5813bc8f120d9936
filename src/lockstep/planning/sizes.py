"""Totals of a model: how many parameters, how many bytes of them lie where, what a checkpoint of it holds."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lockstep.training.common.throughput import FlopsModel


def model_sizes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Sums (and maxima) that grow evenly with the number of layers. Sharded tensors count whole, unless said."""
    parameters = list(model.parameters())
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    states = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor) and v.ndim]
    flops = FlopsModel.of(model)
    return {
        "num_parameters": sum(_num_weights(p) for p in parameters),
        "num_trained": sum(p.numel() for p in trained),
        "num_body": flops.num_body,
        "num_body_trained": flops.num_body_trained,
        "num_head": flops.num_head,
        "num_head_trained": flops.num_head if flops.head_trained else 0,
        "model_bytes": _bytes(parameters),
        "local_model_bytes": _bytes(_local(p) for p in parameters),
        "trained_bytes": _bytes(trained),
        "optimizer_bytes": _bytes(states),
        "local_state_bytes": _bytes(_local(t) for t in (*trained, *states)),
        "largest_tensor_bytes": max(p.numel() * p.element_size() for p in parameters),
        "largest_tensor_weights": max(_num_weights(p) for p in parameters),
    }


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _num_weights(parameter: Tensor) -> int:
    """Weights in a parameter; 4-bit storage packs several into each element."""
    state = getattr(parameter, "quant_state", None)
    return int(state.shape.numel()) if state is not None else parameter.numel()

"""From a few layers to all of them: decoder layers are alike, so live bytes are affine in their number.

At the k-th layer from either end of the stack, whatever is alive (parameters, gradients, saved activations) grows by
the same amount with every layer that is added in the middle. So a model is simulated twice with few layers, and each
moment is extended along the straight line through both. Within the middle, bytes are affine in the position, too, so
the peak is at one of the ends that were simulated. A test compares this with the simulation of every layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from lockstep.planning.live import Bytes, LiveMemory, Moment

_EDGE = 2
_FEW = 2 * _EDGE + 1
"""Layers in the smaller of the two simulations: both edges and one in the middle."""


@dataclass(frozen=True)
class Sample:
    """What one simulation saw."""

    peaks: dict[Moment, Bytes]
    sizes: dict[str, int]
    """Totals that are affine in the number of layers: parameter counts, bytes of the whole model."""


def sample_all_layers(config: PretrainedConfig, simulate: Callable[[PretrainedConfig], Sample]) -> Sample:
    """What `simulate` would see on the whole model, from two runs with few layers where layers are alike."""
    num_layers = config.num_hidden_layers
    if num_layers <= _FEW + 1 or not _layers_alike(config):
        return simulate(config)
    few = simulate(with_layers(config, _FEW))
    one_more = simulate(with_layers(config, _FEW + 1))
    return _extended(few, one_more, num_layers - _FEW)


def with_layers(config: PretrainedConfig, num_layers: int) -> PretrainedConfig:
    """The same model with fewer layers."""
    fewer: PretrainedConfig = type(config).from_dict(config.to_dict())
    if getattr(config, "layer_types", None):
        fewer.layer_types = config.layer_types[:num_layers]
    fewer.num_hidden_layers = num_layers
    fewer._attn_implementation = config._attn_implementation
    return fewer


def mark_layers(model: nn.Module, live: LiveMemory, phase: Callable[[], str | None]) -> None:
    """Makes `live` note which layer runs, forward and backward, under the phase that `phase()` says (None: no note)."""
    layers = decoder_layers(model)

    def note(part: str) -> None:
        name = phase()
        live.at(None if name is None else Moment(name, part))

    def before(index: int) -> Callable[..., None]:
        part = _part(index, len(layers))

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            note(part)
            _on_gradient((args, kwargs) if index == 0 else (), lambda: note("bottom"))

        return hook

    def after(index: int) -> Callable[..., None]:
        part = _part(index, len(layers))

        def hook(_: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001
            _on_gradient(output, lambda: note(part))
            if index == len(layers) - 1 and not torch._C._current_graph_task_id() >= 0:
                note("top")

        return hook

    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(before(index), with_kwargs=True)
        layer.register_forward_hook(after(index))


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The stack of decoder layers: the longest list of modules."""
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(stacks, key=len)


def _on_gradient(values: Any, action: Callable[[], None]) -> None:
    for value in torch.utils._pytree.tree_leaves(values):
        if isinstance(value, Tensor) and value.requires_grad and value.is_floating_point():
            value.register_hook(lambda _: action())
            return


def _part(index: int, num_layers: int) -> str:
    """The layer's name counted from the nearer end, so that it means the same in a deeper model."""
    if index < _EDGE:
        return f"layer {index}"
    from_end = num_layers - 1 - index
    return f"layer -{from_end + 1}" if from_end < _EDGE else "middle"


def _layers_alike(config: PretrainedConfig) -> bool:
    kinds = getattr(config, "layer_types", None)
    return not kinds or len(set(kinds)) == 1


def _extended(few: Sample, one_more: Sample, num_added: int) -> Sample:
    peaks = {
        moment: {kind: _line(value, one_more.peaks[moment][kind], num_added) for kind, value in kinds.items()}
        for moment, kinds in few.peaks.items()
        if moment in one_more.peaks and moment.part != "middle"
    }
    sizes = {name: _line(value, one_more.sizes[name], num_added) for name, value in few.sizes.items()}
    return Sample(peaks, sizes)


def _line(at_few: int, at_one_more: int, num_added: int) -> int:
    return max(0, at_few + (at_one_more - at_few) * num_added)

"""A 4-bit base sharded over ranks: our own `fully_shard`, because Transformers loads the combination and dies later.

bitsandbytes packs 4-bit weights into a dtype of our choice; packed into floats, FSDP2 shards and gathers them like any
parameter (Answer.AI, "You can now train a 70b language model at home", 2024). The scales stay whole on every rank.
Weights stream from the files one unit at a time: read, quantised on the device, sharded, and the whole unit is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from transformers import PretrainedConfig, PreTrainedModel
from transformers.distributed.utils import TransformersDeviceMesh, initialize_distributed_mesh
from transformers.quantizers.auto import AutoHfQuantizer

from lockstep.models.model_folder import WeightFiles
from lockstep.models.precision import DTYPES
from lockstep.models.quantized import bits_and_bytes_config, keep_differentiable
from lockstep.models.sharding import Layout, build_model, check_plan, mark_as_sharded, units
from lockstep.params.model import ModelParams, QuantizationParams

_ON_WEIGHT = ("compress_statistics", "quant_type")
"""What PEFT reads from a 4-bit weight where it wraps the layer; a shard is a new parameter and does not have it."""


def load_sharded_4bit(
    folder: Path, config: PretrainedConfig, params: ModelParams, layout: Layout, device: torch.device
) -> PreTrainedModel:
    """The frozen base, each rank with its part of the packed weights. Collective.

    Raises UsageError where the model has no plan to shard it by, or the folder lacks a weight.
    """
    assert params.quantization is not None
    check_plan(config)
    compute = DTYPES[params.precision.compute]
    with init_empty_weights(include_buffers=False):
        model = build_model(config, compute)
    replace_linear(model, params.quantization, compute)
    mesh = initialize_distributed_mesh(layout.distributed_config(params.precision))[1]
    filler = _Filler(model, WeightFiles(folder), device, compute)
    shard_4bit(model, mesh, layout, params, filler.fill)
    keep_differentiable(model)
    return model.eval()


def replace_linear(model: PreTrainedModel, quantization: QuantizationParams, compute: torch.dtype) -> None:
    """Puts bitsandbytes' layers, still empty, where `from_pretrained` would put them."""
    quantizer = AutoHfQuantizer.from_config(bits_and_bytes_config(quantization, compute), pre_quantized=False)
    quantizer.preprocess_model(model=model, device_map={"": "meta"})
    quantizer._process_model_after_weight_loading(model)
    model.hf_quantizer = quantizer  # whom Trainer asks whether such a model can be trained


def shard_4bit(
    model: PreTrainedModel,
    mesh: TransformersDeviceMesh,
    layout: Layout,
    params: ModelParams,
    fill: Callable[[list[nn.Module]], None],
) -> None:
    """Fills and shards one unit after the other, in the dtypes that they have: nothing here is a master weight."""
    shards = mesh.get_mesh("fsdp")
    for modules, reshard_after_forward in units(model):
        fill(modules)
        _sharded(modules, reshard_after_forward, shards)
    fill([model])
    _sharded([model], True, shards)
    model.requires_grad_(False)
    mark_as_sharded(model, mesh, layout.distributed_config(params.precision))


def _sharded(modules: list[nn.Module], reshard_after_forward: bool, mesh: Any) -> None:
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, bnb.nn.Linear4bit)]
    facts = [{name: getattr(layer.weight, name) for name in _ON_WEIGHT} for layer in layers]
    fully_shard(modules, mesh=mesh, reshard_after_forward=reshard_after_forward)
    for layer, known in zip(layers, facts, strict=True):
        for name, value in known.items():
            setattr(layer.weight, name, value)


class _Filler:
    """Gives modules their weights."""

    def __init__(self, model: PreTrainedModel, files: WeightFiles, device: torch.device, compute: torch.dtype) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._tied = set(model.all_tied_weights_keys)
        self._model, self._files, self._device, self._compute = model, files, device, compute

    def fill(self, modules: list[nn.Module]) -> None:
        """Reads what is still empty in `modules`; 4-bit layers are quantised on the device."""
        for module in modules:
            for child in module.modules():
                prefix = self._names[id(child)]
                for name, parameter in child.named_parameters(recurse=False):
                    full = f"{prefix}.{name}" if prefix else name
                    if parameter.is_meta and full not in self._tied:
                        setattr(child, name, self._parameter(child, name, self._files.read(full)))
        if modules == [self._model]:
            self._model.tie_weights()

    def _parameter(self, module: nn.Module, name: str, values: Tensor) -> nn.Parameter:
        values = values.to(self._compute)
        if isinstance(module, bnb.nn.Linear4bit) and name == "weight":
            empty = module.weight
            packed = bnb.nn.Params4bit(
                values,
                requires_grad=False,
                compress_statistics=empty.compress_statistics,
                quant_type=empty.quant_type,
                quant_storage=empty.quant_storage,
                module=module,
            )
            return packed.to(self._device)
        return nn.Parameter(values.to(self._device), requires_grad=False)

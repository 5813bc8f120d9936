"""The model of a run on fake tensors: built, quantised, sharded and adapted by the functions that training calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from transformers import PretrainedConfig, PreTrainedModel
from transformers.distributed.utils import TransformersDeviceMesh

from lockstep.models.adapters import add_lora
from lockstep.models.precision import DTYPES
from lockstep.models.sharded_4bit import shard_4bit
from lockstep.models.sharding import Layout, build_model, shard
from lockstep.params.model import LoraParams, ModelParams
from lockstep.planning.fake import materialize
from lockstep.planning.live import LiveMemory
from lockstep.planning.quantized import quantize
from lockstep.planning.results import Kind

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class World:
    """Where a fake model is built: the mode, the ranks, and the device whose code paths are followed."""

    mode: FakeTensorMode
    mesh: TransformersDeviceMesh
    layout: Layout
    device: Device


def meta_model(config: PretrainedConfig, params: ModelParams) -> PreTrainedModel:
    """The base model on the meta device, as `load_model` would build it; quantised where the parameters say so."""
    compute = DTYPES[params.precision.compute]
    with torch.device("meta"):
        model = build_model(config, DTYPES[params.master_dtype] if params.quantization is None else compute)
    if params.quantization is not None:
        quantize(model, params.quantization, compute)
    return model


def training_model(config: PretrainedConfig, params: ModelParams, peft: LoraParams | None, world: World) -> nn.Module:
    """The model as SFT trains it: fake tensors, sharded where training shards, with a fresh adapter if asked."""
    model = meta_model(config, params)
    if _is_sharded(params, world.layout):
        materialize(model, world.mode)
        with world.mode:
            if params.quantization is None:
                shard(model, world.mesh, world.layout, params.precision)
            else:
                shard_4bit(model, world.mesh, world.layout, params, fill=lambda _: None)
    with torch.device("meta"):
        adapted: nn.Module = model if peft is None else add_lora(model, peft, seed=0)
    materialize(adapted, world.mode)
    return adapted


def _is_sharded(params: ModelParams, layout: Layout) -> bool:
    """As `load_model` decides: over ranks, or on one rank to keep master weights beside compute weights."""
    if params.quantization is not None:
        return layout.num_ranks > 1 and params.quantization.is_shardable
    return layout.num_ranks > 1 or params.precision.compute != params.master_dtype


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def mark_model(live: LiveMemory, model: nn.Module) -> None:
    """Tells `live` which storages are parameters, gathered parameters and gradients, as far as they exist now."""
    live.mark(Kind.UNSHARDED, _gathered(model))
    live.mark(Kind.PARAMETERS, [*model.parameters(), *model.buffers()])
    live.mark(Kind.GRADIENTS, [parameter.grad for parameter in model.parameters()])


def _gathered(model: nn.Module) -> list[Any]:
    """The whole parameters that FSDP2 keeps beside the shards, gathered or freed at the moment."""
    groups = [m._get_fsdp_state()._fsdp_param_group for m in model.modules() if isinstance(m, FSDPModule)]
    parameters = [parameter for group in groups if group is not None for parameter in group.fsdp_params]
    return [parameter._unsharded_param for parameter in parameters if hasattr(parameter, "_unsharded_param")]

"""Sharding a model over ranks by the model's own plan: FSDP2, or HSDP with replicas.

Transformers shards while it loads. The functions here are the parts that also work on a model without weights
(meta or fake tensors), so that a planner builds and shards exactly what training builds and shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.distributed.fsdp import is_norm_and_head_pair
from transformers.distributed.utils import TransformersDeviceMesh

from lockstep.foundation.errors import UsageError
from lockstep.models.precision import is_switch_of_transformers, mixed_precision_policy
from lockstep.params.model import PrecisionParams

_MIN_PLANNED_FRACTION = 0.5


@dataclass(frozen=True)
class Layout:
    """How parameters lie on ranks: `dp_replicate_size` replicas, each sharded over the remaining ranks."""

    num_ranks: int
    dp_replicate_size: int = 1

    @property
    def fsdp_size(self) -> int:
        """Ranks over which one replica is sharded."""
        return self.num_ranks // self.dp_replicate_size

    def distributed_config(self, precision: PrecisionParams) -> DistributedConfig:
        """The same, as Transformers takes it."""
        return DistributedConfig(
            fsdp_size=self.fsdp_size,
            dp_replicate_size=self.dp_replicate_size,
            fsdp_mixed_precision=precision.compute == "bf16",
        )


def build_model(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A causal language model without loaded weights, on the current default device (also meta, or fake tensors)."""
    return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)


def check_plan(config: PretrainedConfig) -> None:
    """Refuses a model that cannot be sharded layer by layer.

    Raises UsageError naming the model class where the modules of its plan hold less than half of its parameters.
    """
    with torch.device("meta"):
        model = build_model(config, torch.float32)
    planned = {
        id(parameter)
        for name in _plan(model, DistributedConfig(fsdp_size=2))
        for parameter in model.get_submodule(name).parameters()
    }
    total = sum(p.numel() for p in model.parameters())
    covered = sum(p.numel() for p in model.parameters() if id(p) in planned)
    if covered < _MIN_PLANNED_FRACTION * total:
        raise UsageError(
            f"{type(model).__name__} has no sharding plan that fits it (its plan covers {covered:,} of {total:,} "
            "parameters), so each rank would gather the whole model at once.\n"
            "Train it on one process (sft.num_processes: 1), or choose a model whose layers Transformers can shard."
        )


def shard(
    model: PreTrainedModel, mesh: TransformersDeviceMesh, layout: Layout, precision: PrecisionParams
) -> PreTrainedModel:
    """Shards `model` in place by its own plan; works on meta and fake tensors, and on a mesh of one rank.

    With more than one rank, and where its precision switch suffices, Transformers does it.
    """
    config = layout.distributed_config(precision)
    _untie(model)
    if layout.num_ranks > 1 and is_switch_of_transformers(precision):
        type(model).maybe_distribute_model(model, config, mesh)
    else:
        _fully_shard(model, mesh, config, precision)
    model.tie_weights(recompute_mapping=False)
    return model


def one_rank_mesh(device_type: str) -> TransformersDeviceMesh:
    """A mesh of this rank alone: FSDP2 on it shards nothing and still keeps master weights beside compute weights."""
    names = ("pp", "dp_replicate", "fsdp", "tp")
    dense = init_device_mesh(device_type, (1, 1, 1, 1), mesh_dim_names=names)
    expert = init_device_mesh(device_type, (1, 1, 1, 1), mesh_dim_names=("pp", "dp_replicate", "efsdp", "ep"))
    return TransformersDeviceMesh(dense, expert)


def sharding_class(model_class: type[PreTrainedModel], precision: PrecisionParams) -> type[PreTrainedModel]:
    """`model_class` whose loader shards with our policy, for precisions that Transformers' switch does not know."""

    class Sharded(model_class):
        @classmethod
        def maybe_distribute_model(cls, model: Any, distributed_config: Any, mesh_manager: Any) -> Any:
            return _fully_shard(model, mesh_manager, distributed_config, precision)

    Sharded.__name__ = Sharded.__qualname__ = model_class.__name__
    Sharded.__module__ = model_class.__module__
    return Sharded


def _untie(model: PreTrainedModel) -> None:
    """Gives tied names parameters of their own over the same memory; FSDP2 refuses one parameter in two units.

    `tie_weights` makes them one again once they are shards, as Transformers' loader does, which shards before it ties.
    """
    for name in model.all_tied_weights_keys:
        parent, _, leaf = name.rpartition(".")
        tied = model.get_parameter(name)
        setattr(model.get_submodule(parent), leaf, nn.Parameter(tied.detach(), requires_grad=tied.requires_grad))


def _plan(model: PreTrainedModel, config: DistributedConfig) -> dict[str, str]:
    """Module name → whether it frees its gathered weight after forward; inner modules before those that hold them."""
    return model._resolve_parallel_plans(config)[2]


def _fully_shard(
    model: PreTrainedModel, mesh: TransformersDeviceMesh, config: DistributedConfig, precision: PrecisionParams
) -> PreTrainedModel:
    """What Transformers' `maybe_distribute_model` does for data parallelism, with any FSDP2 policy."""
    options: dict[str, Any] = {
        "mesh": mesh.get_mesh(("dp_replicate", "fsdp") if config.dp_replicate_size > 1 else "fsdp"),
        "mp_policy": mixed_precision_policy(precision),
    }
    for modules, reshard_after_forward in units(model):
        fully_shard(modules, reshard_after_forward=reshard_after_forward, **options)
    fully_shard(model, **options)
    mark_as_sharded(model, mesh, config)
    return model


def units(model: PreTrainedModel) -> list[tuple[list[nn.Module], bool]]:
    """The modules that are gathered together by the model's plan, inner ones first; and whether forward frees them."""
    plan = _plan(model, DistributedConfig(fsdp_size=2))
    freed = [([model.get_submodule(name)], True) for name, style in plan.items() if style != "keep_full_weight"]
    tail = [(name, model.get_submodule(name)) for name, style in plan.items() if style == "keep_full_weight"]
    # Norm and head are needed last in forward and first in backward: one unit that stays gathered in between.
    kept = [[module for _, module in tail]] if is_norm_and_head_pair(tail, model) else [[module] for _, module in tail]
    return [*freed, *((modules, False) for modules in kept)]


def mark_as_sharded(model: PreTrainedModel, mesh: TransformersDeviceMesh, config: DistributedConfig) -> None:
    """Tells Transformers' loader and Trainer what they know of models they sharded themselves."""
    model.config.distributed_config = config
    model._mesh_manager = mesh
    model._device_mesh = mesh.get_mesh(("pp", "fsdp", "tp"))
    model._is_distributed_loading_by_transformers = True
    model._is_fsdp_managed_module = True
    model._tp_size, model._fsdp_size = 1, config.fsdp_size

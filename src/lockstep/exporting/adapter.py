"""A PEFT folder, out of a checkpoint or of a complete run, with the scalar head beside it where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from lockstep.checkpoints.reading import WholeTensors
from lockstep.exporting.model import blank_model
from lockstep.exporting.order import Order
from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import read_json, replace_tree, write_json
from lockstep.models.adapters import add_lora
from lockstep.models.export import export_adapter
from lockstep.models.weights import read_manifest, verify_manifest, write_manifest
from lockstep.training.ppo.export import export_policy, export_reward_model
from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.roles import Adapters, Role, build_backbone
from lockstep.training.ppo.state import trained_parameters
from lockstep.training.sft.resume import WEIGHTS_PREFIX

_CONFIG = "adapter_config.json"


def base_folder(order: Order) -> Path:
    """What the adapter lies on: the base model, or the fine-tuned one where SFT trained all parameters."""
    on_tuned = order.stage != "sft" and read_manifest(order.input("sft"))["kind"] == "model"
    return order.input("sft" if on_tuned else "model")


def export_result(order: Order, folder: Path) -> dict[str, Any]:
    """The adapter of a complete run, verified. Returns its manifest. Raises UsageError where a file differs."""
    made = order.directory.outputs / "weights"
    verify_manifest(made, read_manifest(made))
    replace_tree(made, folder)
    return _named_base(order, folder)


def export_checkpoint(order: Order, tensors: WholeTensors, folder: Path) -> dict[str, Any]:
    """The adapter as it stood at a checkpoint, by the exporters that end a run. Returns its manifest.

    The base is built without weights, for its names and shapes; only what was trained takes memory.
    """
    params, base = order.experiment, base_folder(order)
    blank = blank_model(base, params.model)
    hidden_size = int(blank.config.get_text_config().hidden_size)
    if order.stage == "sft":
        assert params.sft.peft is not None
        model = _with_memory(add_lora(blank, params.sft.peft, seed=0))
        _fill(tensors, _prefixed(WEIGHTS_PREFIX, _trainable(model)))
        export_adapter(model, folder, base=params.model.path)
    elif order.stage == "reward":
        model, head = add_lora(blank, params.reward.lora, seed=0, adapter_name=Role.REWARD), ScalarHead(hidden_size)
        trained = _prefixed("adapter/", _trainable(_with_memory(model)))
        _fill(tensors, {**trained, **_prefixed("head/", dict(head.named_parameters()))})
        export_reward_model(model, head, folder, base=params.model.path)
    else:
        sft = order.input("sft") if read_manifest(order.input("sft"))["kind"] == "adapter" else None
        backbone = build_backbone(blank, Adapters(sft), params.ppo.lora, 0, value_adapter=params.ppo.value.adapter)
        _with_memory(backbone.peft_model)
        head = ScalarHead(hidden_size)
        _fill(tensors, trained_parameters(backbone, head))
        export_policy(backbone, head, folder, base=params.model.path)
    return _named_base(order, folder)


def _with_memory(model: PeftModel) -> PeftModel:
    """Gives the adapters, alone, memory on the CPU; they hold no values yet."""
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            for name in layer.adapter_layer_names:
                getattr(layer, name).to_empty(device="cpu")
    return model


def _trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _prefixed(prefix: str, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in named.items()}


def _fill(tensors: WholeTensors, named: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(tensors.read(name, tuple(parameter.shape)))


def _named_base(order: Order, folder: Path) -> dict[str, Any]:
    """Names the base as others can get it (a hub name and commit, or the run that made it); then the manifest."""
    manifest = read_manifest(folder)
    if manifest["kind"] != "adapter":
        raise UsageError(f"{order.stage} {order.record['run_id']} was turned off and has no weights to export.")
    named = _public_base(order)
    for config in sorted(folder.rglob(_CONFIG), reverse=True) if named else ():
        write_json(config, {**read_json(config), **named})
        digest = read_manifest(config.parent)["weights_sha256"]
        manifest = write_manifest(config.parent, config.parent, "adapter", digest)
    return manifest


def _public_base(order: Order) -> dict[str, Any]:
    tuned = order.experiment.sft.enabled and order.experiment.sft.peft is None
    if order.stage != "sft" and tuned:
        maker = order.record.get("made_by", {}).get("sft", "unknown")
        return {"base_model_name_or_path": f"lockstep-sft-{maker}"}
    kind, _, name = order.experiment.model.source.partition(":")
    repository, _, commit = name.partition("@")
    return {"base_model_name_or_path": repository, "revision": commit} if kind == "hub" else {}

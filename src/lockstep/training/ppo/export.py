"""The results of PPO and of the reward stage as folders: a plain PEFT adapter, its scalar head beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peft import PeftModel

from lockstep.models.adapters import adapter_tensors
from lockstep.models.export import export_adapter
from lockstep.models.weights import weights_sha256, write_manifest
from lockstep.training.ppo.heads import HEAD_FILE, ScalarHead
from lockstep.training.ppo.roles import Backbone, Role

VALUE_HEAD_FILE = "value_head.safetensors"
VALUE_ADAPTER = "value_adapter"


def export_policy(backbone: Backbone, value_head: ScalarHead, folder: Path, *, base: str) -> dict[str, Any]:
    """Writes `folder`: adapter_config.json, adapter_model.safetensors, value_head.safetensors, manifest.json.

    `PeftModel.from_pretrained(base, folder)` is the policy, whole: an SFT adapter that it began as is part of it.
    A critic with an adapter of its own gets a folder below. The manifest's weights_sha256 covers the critic, too.
    """
    export_adapter(backbone.peft_model, folder, base=base, adapter_name=Role.POLICY)
    value_head.save(folder / VALUE_HEAD_FILE)
    trained = dict(adapter_tensors(backbone.peft_model, Role.POLICY))
    trained |= {f"{VALUE_HEAD_FILE}/{name}": tensor for name, tensor in value_head.state_dict().items()}
    if backbone.has(Role.VALUE):
        export_adapter(backbone.peft_model, folder / VALUE_ADAPTER, base=base, adapter_name=Role.VALUE)
        critic = adapter_tensors(backbone.peft_model, Role.VALUE)
        trained |= {f"{VALUE_ADAPTER}/{name}": tensor for name, tensor in critic.items()}
    return write_manifest(folder, folder, "adapter", weights_sha256(trained.items()))


def export_reward_model(model: PeftModel, head: ScalarHead, folder: Path, *, base: str) -> dict[str, Any]:
    """Writes `folder`: the reward adapter as a PEFT folder, head.safetensors, manifest.json (its hash covers both)."""
    export_adapter(model, folder, base=base, adapter_name=Role.REWARD)
    head.save(folder / HEAD_FILE)
    trained = dict(adapter_tensors(model, Role.REWARD))
    trained |= {f"{HEAD_FILE}/{name}": tensor for name, tensor in head.state_dict().items()}
    return write_manifest(folder, folder, "adapter", weights_sha256(trained.items()))

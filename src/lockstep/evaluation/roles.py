"""The trained policy beside its reference, as roles on one backbone, ready to complete prompts."""

from __future__ import annotations

from pathlib import Path

import torch

from lockstep.models.adapters import load_adapter
from lockstep.models.loading import load_model
from lockstep.params.experiment import Experiment
from lockstep.training.ppo.build import Folders, frozen
from lockstep.training.ppo.roles import Backbone, Role, disable_dropout


def trained_backbone(folders: Folders, policy: Path, experiment: Experiment, device: torch.device) -> Backbone:
    """Loads the backbone once with the adapters of policy, reference (an SFT adapter, else none) and reward model.

    folders: what the `ppo` stage read; policy: its PEFT folder. Nothing is trainable.
    """
    params = frozen(experiment.model, experiment.ppo.backbone_quantization(experiment.model))
    base = load_model(folders.backbone, params, device=device, device_map=experiment.ppo.device_map)
    model = load_adapter(base, policy, adapter_name=Role.POLICY.value)
    if folders.sft_adapter is not None:
        load_adapter(model, folders.sft_adapter, adapter_name=Role.REFERENCE.value)
    if experiment.ppo.reward.kind == "model" and folders.reward_adapter is not None:
        load_adapter(model, folders.reward_adapter, adapter_name=Role.REWARD.value)
    disable_dropout(model)
    return Backbone(model, frozenset())

"""The trained policy beside its reference, as roles on one backbone, ready to complete prompts."""

from __future__ import annotations

from pathlib import Path

import torch

from lockstep.models.adapters import load_adapter
from lockstep.models.loading import load_model
from lockstep.models.weights import read_manifest
from lockstep.params.experiment import Experiment
from lockstep.training.ppo.roles import Backbone, Role, disable_dropout


def trained_backbone(
    inputs: dict[str, Path], ppo_weights: Path, experiment: Experiment, device: torch.device
) -> Backbone:
    """Loads the backbone once with the adapters of policy, reference (an SFT adapter, else none) and reward model.

    inputs: the folders `model`, `sft` and `reward`, as the `ppo` stage read them. Nothing is trainable.
    """
    kind = read_manifest(inputs["sft"])["kind"]
    base = inputs["sft"] if kind == "model" else inputs["model"]
    quantization = experiment.ppo.backbone_quantization(experiment.model)
    params = experiment.model.model_copy(update={"quantization": quantization})
    model = load_adapter(load_model(base, params, device=device), ppo_weights, adapter_name=Role.POLICY.value)
    if kind == "adapter":
        load_adapter(model, inputs["sft"], adapter_name=Role.REFERENCE.value)
    if experiment.ppo.reward.kind == "model":
        load_adapter(model, inputs["reward"], adapter_name=Role.REWARD.value)
    disable_dropout(model)
    return Backbone(model, frozenset())

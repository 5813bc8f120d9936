"""From folders to an engine: the backbone with its adapters, the tokenizer, the reward, the prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from lockstep.data.store import read_prompts
from lockstep.foundation.errors import UsageError
from lockstep.models.adapters import WEIGHTS
from lockstep.models.loading import load_model, load_tokenizer
from lockstep.models.weights import read_manifest
from lockstep.params.experiment import Experiment
from lockstep.params.model import ModelParams, QuantizationParams
from lockstep.training.common.determinism import derived_seed
from lockstep.training.common.ranks import Ranks
from lockstep.training.ppo.engine import PpoEngine
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.prompts import Prompts, tokenize_prompts
from lockstep.training.ppo.rewards import build_reward
from lockstep.training.ppo.roles import Adapters, Backbone, build_backbone


@dataclass(frozen=True)
class Folders:
    """What PPO is built from, as the stages before left it."""

    model: Path
    """The base model."""
    sft: Path
    """The SFT stage's weights: a full model, an adapter, or only a manifest that says it was skipped."""
    prompts: Path
    reviews: Path
    reward: Path
    """The reward stage's weights, or only a manifest that says it was skipped."""
    project: Path
    """What relative paths in parameters are relative to."""

    @classmethod
    def of(cls, inputs: dict[str, Path], project: Path) -> Folders:
        """The named inputs of the stages `ppo` and `evaluate`."""
        return cls(**{name: inputs[name] for name in ("model", "sft", "prompts", "reviews", "reward")}, project=project)

    @property
    def backbone(self) -> Path:
        """The folder that the backbone is loaded from: the fine-tuned model where SFT trained all parameters."""
        return self.sft if read_manifest(self.sft)["kind"] == "model" else self.model

    @property
    def sft_adapter(self) -> Path | None:
        """The SFT stage's PEFT folder, if that is what it made."""
        return self.sft if read_manifest(self.sft)["kind"] == "adapter" else None

    @property
    def reward_adapter(self) -> Path | None:
        """The reward stage's PEFT folder, unless it was skipped."""
        return self.reward if (self.reward / WEIGHTS).is_file() else None


def frozen(model: ModelParams, quantization: QuantizationParams | None) -> ModelParams:
    """How a backbone is loaded of which nothing is trained: perhaps quantised, and without a master copy."""
    return model.model_copy(update={"quantization": quantization, "master_dtype": model.precision.compute})


def load_backbone(
    folders: Folders, experiment: Experiment, device: torch.device
) -> tuple[Backbone, PreTrainedTokenizerBase]:
    """The backbone in its compute dtype with the adapters of all roles, and its tokenizer.

    Raises UsageError when something is missing or does not fit.
    """
    ppo = experiment.ppo
    params = frozen(experiment.model, ppo.backbone_quantization(experiment.model))
    model = load_model(folders.backbone, params, device=device, device_map=ppo.device_map)
    wants_reward = ppo.reward.kind == "model"
    if wants_reward and folders.reward_adapter is None:
        raise UsageError("ppo.reward.kind: model needs the reward stage; write reward.enabled: true, or another kind")
    adapters = Adapters(folders.sft_adapter, folders.reward_adapter if wants_reward else None)
    seed = derived_seed(experiment.seed, "ppo adapters")
    backbone = build_backbone(model, adapters, ppo.lora, seed, value_adapter=ppo.value.adapter)
    return backbone, load_tokenizer(folders.backbone)


def build_engine(folders: Folders, experiment: Experiment, ranks: Ranks) -> PpoEngine:
    """Everything that a PPO step needs. Raises UsageError when something is missing or does not fit."""
    ppo = experiment.ppo
    if ppo.rollout_batch_size % (ranks.world_size * ppo.num_mini_batches * ppo.per_device_train_batch_size):
        raise UsageError(
            f"{ranks.world_size} ranks × {ppo.num_mini_batches} minibatches × micro-batches of "
            f"{ppo.per_device_train_batch_size} do not divide ppo.rollout_batch_size {ppo.rollout_batch_size}."
        )
    backbone, tokenizer = load_backbone(folders, experiment, ranks.device)
    reward = build_reward(
        ppo.reward,
        project=folders.project,
        reviews=folders.reviews,
        reward_weights=folders.reward_adapter,
        backbone=backbone,
        tokenizer=tokenizer,
    )
    texts = [prompt.text for prompt in read_prompts(folders.prompts / "train.jsonl")]
    prompts = Prompts(
        tokenize_prompts(texts, tokenizer, ppo.max_prompt_length), derived_seed(experiment.seed, "prompts")
    )
    return PpoEngine(
        backbone, reward, tokenizer, prompts, ppo, derived_seed(experiment.seed, "ppo"), Replicas.current()
    )

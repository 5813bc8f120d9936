"""Rewards: where a score of a text may come from. One file each; a new one is one file and one line here."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from lockstep.foundation.errors import UsageError
from lockstep.params.ppo import RewardSourceParams
from lockstep.training.ppo.heads import HEAD_FILE, ScalarHead
from lockstep.training.ppo.rewards.base import Reward
from lockstep.training.ppo.roles import Backbone

__all__ = ["Reward", "build_judge", "build_reward"]


def build_reward(
    source: RewardSourceParams,
    *,
    project: Path,
    reviews: Path,
    reward_weights: Path | None,
    backbone: Backbone,
    tokenizer: PreTrainedTokenizerBase,
) -> Reward:
    """The reward that `ppo.reward` names.

    project: what relative paths are relative to; reviews: the folder of train.jsonl and eval.jsonl;
    reward_weights: the reward stage's weights, None where it is disabled. Raises UsageError when something is missing.
    """
    if source.kind == "learned":
        from lockstep.training.ppo.rewards.learned import fit_learned_reward

        return fit_learned_reward(reviews)
    if source.kind == "lexicon":
        from lockstep.training.ppo.rewards.lexicon import LexiconReward

        return LexiconReward()
    if source.kind == "function":
        from lockstep.training.ppo.rewards.function import load_function

        return load_function(str(source.file), project)
    if source.kind == "classifier":
        from lockstep.training.ppo.rewards.classifier import ClassifierReward

        return ClassifierReward(
            project / str(source.path),
            source.label,
            batch_size=source.batch_size,
            max_length=source.max_length,
            device=backbone.device,
        )
    return _adapter_reward(source, reward_weights, backbone, tokenizer)


def _adapter_reward(
    source: RewardSourceParams, weights: Path | None, backbone: Backbone, tokenizer: PreTrainedTokenizerBase
) -> Reward:
    from lockstep.training.ppo.rewards.adapter import AdapterReward

    if weights is None:
        raise UsageError("ppo.reward.kind: model needs the reward stage; write reward.enabled: true, or another kind")
    head = ScalarHead.load(weights / HEAD_FILE, backbone.hidden_size).to(backbone.device)
    return AdapterReward(backbone, head, tokenizer, batch_size=source.batch_size, max_length=source.max_length)


def build_judge(source: RewardSourceParams, reviews: Path) -> Reward:
    """A second opinion that PPO never saw: the lexicon, or the learned classifier where the lexicon was the reward."""
    if source.kind != "lexicon":
        from lockstep.training.ppo.rewards.lexicon import LexiconReward

        return LexiconReward()
    from lockstep.training.ppo.rewards.learned import fit_learned_reward

    return fit_learned_reward(reviews)

"""The numbers of a step under stable names, equal on all ranks; deterministic ones apart from speed and memory."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from lockstep.training.ppo.advantages import masked_mean
from lockstep.training.ppo.experience import Experience
from lockstep.training.ppo.objective import explained_variance
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.stats import UpdateStats

DETERMINISTIC = (
    "objective/kl",
    "objective/kl_per_token",
    "objective/kl_coef",
    "objective/score",
    "objective/score_std",
    "objective/reward",
    "objective/length",
    "objective/finished",
    "objective/distinct2",
    "policy/loss",
    "policy/clipfrac",
    "policy/approxkl",
    "policy/entropy",
    "policy/ratio",
    "policy/grad_norm",
    "value/loss",
    "value/clipfrac",
    "value/explained_variance",
    "value/grad_norm",
    "learning_rate",
    "num_tokens",
)
"""Names whose values follow from what is locked; curves/train.tsv has these columns and no others."""


def objective_metrics(experience: Experience, replicas: Replicas) -> dict[str, float]:
    """What the policy did and got.

    objective/kl is the mean over completions of the KL summed over tokens, as TRL defined it; objective/kl_per_token is
    the mean over tokens, in nats. objective/reward is the score minus the weighted KL, per completion.
    """
    mask = experience.completions.mask.float()

    def mean(rows: Tensor) -> float:
        return float(masked_mean(rows.float(), torch.ones_like(rows, dtype=torch.float32), replicas.sum))

    score = mean(experience.scores)
    return {
        "objective/kl": mean(experience.kl.sum(dim=1)),
        "objective/kl_per_token": float(masked_mean(experience.kl, mask, replicas.sum)),
        "objective/score": score,
        "objective/score_std": mean((experience.scores - score) ** 2) ** 0.5,
        "objective/reward": mean(experience.rewards.sum(dim=1)),
        "objective/length": mean(experience.completions.lengths),
        "objective/finished": mean(experience.completions.finished),
        "objective/distinct2": mean(torch.tensor([distinct2(completion_tokens(experience))], device=mask.device)),
        "policy/entropy": float(masked_mean(experience.entropies, mask, replicas.sum)),
        "value/explained_variance": mean(
            torch.tensor([explained_variance(experience.values, experience.returns, mask)], device=mask.device)
        ),
    }


def update_metrics(stats: UpdateStats) -> dict[str, float]:
    """What the update did: means over its minibatches."""
    return {
        "policy/loss": stats.mean("policy_loss"),
        "policy/clipfrac": stats.mean("clipfrac"),
        "policy/approxkl": stats.mean("approx_kl"),
        "policy/ratio": stats.mean("ratio"),
        "policy/grad_norm": stats.mean("policy_grad_norm"),
        "value/loss": stats.mean("value_loss"),
        "value/clipfrac": stats.mean("value_clipfrac"),
        "value/grad_norm": stats.mean("value_grad_norm"),
    }


def completion_tokens(experience: Experience) -> list[list[int]]:
    """The token ids of each completion."""
    return [new for _, new in experience.completions.token_lists()]


def distinct2(completions: list[list[int]]) -> float:
    """Distinct token pairs over all token pairs (Li et al., 2016, arXiv:1510.03055); 1 where there is no pair."""
    pairs = [pair for tokens in completions for pair in itertools.pairwise(tokens)]
    return len(set(pairs)) / len(pairs) if pairs else 1.0

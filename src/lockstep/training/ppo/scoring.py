"""Log-probabilities of completions by a full forward pass, with logits that exist for one chunk of tokens at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lockstep.foundation.errors import LockstepError
from lockstep.training.ppo.finite import explain_non_finite
from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.roles import Backbone, Role
from lockstep.training.ppo.rollout import Completions


@dataclass(frozen=True)
class LogitsConfig:
    """How hidden states become log-probabilities; the same in sampling, scoring and update."""

    temperature: float
    chunk_size: int
    """Tokens whose logits exist at one time."""


def completion_states(backbone: Backbone, completions: Completions) -> Tensor:
    """Hidden states that predict each completion token, under the active role: (batch, T, hidden_size).

    A full forward over prompt and completion. The KV cache of the rollout is not reused: cached and full logits differ
    by up to 0.02 in int8 and bf16, which would show as a ratio other than 1 before any update.
    """
    hidden = backbone.hidden_states(completions.tokens, completions.attention_mask, completions.position_ids)
    return hidden[:, -completions.num_new_tokens - 1 : -1]


def token_logprobs(
    backbone: Backbone, states: Tensor, completions: Completions, config: LogitsConfig, *, with_entropy: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the completion tokens, and the entropies of their distributions, in nats and fp32.

    states: (batch, T, hidden_size) as from `completion_states`. Returns two (batch, T) tensors, zero outside the mask;
    the second is all zeros unless `with_entropy`. Logits of `chunk_size` tokens exist at one time, in the backward too,
    where they are computed anew; padding is never scored.
    """
    mask = completions.mask
    flat_states, flat_targets = states[mask], completions.targets[mask]
    logprobs, entropies = [], []
    for start in range(0, len(flat_targets), config.chunk_size):
        chunk = slice(start, start + config.chunk_size)
        scored = _checkpointed(backbone, flat_states[chunk], flat_targets[chunk], config.temperature, with_entropy)
        logprobs.append(scored[0])
        entropies.append(scored[1])
    return _scatter(torch.cat(logprobs), mask), _scatter(torch.cat(entropies), mask)


def _checkpointed(
    backbone: Backbone, states: Tensor, targets: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    if not torch.is_grad_enabled():
        return _score_chunk(backbone, states, targets, temperature, with_entropy)
    return checkpoint(_score_chunk, backbone, states, targets, temperature, with_entropy, use_reentrant=False)


def _score_chunk(
    backbone: Backbone, states: Tensor, targets: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    logits = backbone.logits(states).float() / temperature
    negative_logprobs = F.cross_entropy(logits, targets, reduction="none")
    if not with_entropy:
        return -negative_logprobs, torch.zeros_like(negative_logprobs)
    log_softmax = F.log_softmax(logits, dim=-1)
    return -negative_logprobs, -(log_softmax.exp() * log_softmax).sum(dim=-1)


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).index_put((mask,), values)


@dataclass(frozen=True)
class Scored:
    """What a full forward says about completions; all (batch, T), fp32, zero outside the mask."""

    logprobs: Tensor
    entropies: Tensor
    values: Tensor | None


@torch.no_grad()
def score_completions(
    backbone: Backbone,
    role: Role,
    completions: Completions,
    config: LogitsConfig,
    *,
    batch_size: int,
    value_head: ScalarHead | None = None,
    with_entropy: bool = False,
    poll: Callable[[], None] = lambda: None,
) -> Scored:
    """Scores completions under `role`, `batch_size` rows at a time; `value_head` also reads values from its states.

    Raises LockstepError naming the first layer whose output is not finite, when a log-probability is not.
    """
    parts: list[Scored] = []
    with backbone.role(role), backbone.generating():
        for start in range(0, len(completions.lengths), batch_size):
            poll()
            rows = completions.rows(slice(start, start + batch_size))
            states = completion_states(backbone, rows)
            logprobs, entropies = token_logprobs(backbone, states, rows, config, with_entropy=with_entropy)
            if not torch.isfinite(logprobs).all():
                raise LockstepError(explain_non_finite(backbone, role, rows))
            parts.append(Scored(logprobs, entropies, value_head(states) * rows.mask if value_head else None))
    return _concatenate(parts)


@torch.no_grad()
def score_values(
    backbone: Backbone, completions: Completions, value_head: ScalarHead, batch_size: int, poll: Callable[[], None]
) -> Tensor:
    """Values under the value role's own adapter, (batch, T), zero outside the mask."""
    parts = []
    with backbone.role(Role.VALUE), backbone.generating():
        for start in range(0, len(completions.lengths), batch_size):
            poll()
            rows = completions.rows(slice(start, start + batch_size))
            parts.append(value_head(completion_states(backbone, rows)) * rows.mask)
    return torch.cat(parts)


def _concatenate(parts: list[Scored]) -> Scored:
    values = [part.values for part in parts if part.values is not None]
    return Scored(
        logprobs=torch.cat([part.logprobs for part in parts]),
        entropies=torch.cat([part.entropies for part in parts]),
        values=torch.cat(values) if values else None,
    )

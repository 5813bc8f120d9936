"""One step's experience: completions of the policy, what policy, reference, critic and reward say about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lockstep.params.ppo import PpoParams
from lockstep.training.ppo.advantages import gae, token_rewards, whiten
from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.kl import kl_per_token
from lockstep.training.ppo.normalisation import RunningMoments
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.rewards import Reward
from lockstep.training.ppo.roles import Backbone, Role
from lockstep.training.ppo.rollout import Completions
from lockstep.training.ppo.scoring import LogitsConfig, score_completions, score_values


@dataclass(frozen=True)
class Experience:
    """What an update learns from. Tensors are fp32; B completions of at most T tokens, zero outside the mask."""

    completions: Completions
    texts: list[str]
    """Prompt and completion, as the reward read them."""
    scores: Tensor
    """(B,) as the reward gave them."""
    logprobs: Tensor
    """(B, T) of the policy that sampled, by a full forward."""
    ref_logprobs: Tensor
    """(B, T)."""
    entropies: Tensor
    """(B, T) of the policy that sampled."""
    values: Tensor
    """(B, T)."""
    kl: Tensor
    """(B, T) per-token estimate that entered the reward."""
    rewards: Tensor
    """(B, T)."""
    advantages: Tensor
    """(B, T)."""
    returns: Tensor
    """(B, T)."""


@dataclass(frozen=True)
class Scorer:
    """Turns completions into experience."""

    backbone: Backbone
    value_head: ScalarHead
    reward: Reward
    tokenizer: PreTrainedTokenizerBase
    params: PpoParams
    replicas: Replicas

    def experience(
        self, completions: Completions, kl_coef: float, moments: RunningMoments, poll: Callable[[], None]
    ) -> Experience:
        """Scores under every role. `moments` is updated where scores are scaled, after the last poll."""
        logprobs, entropies, ref_logprobs, values = self._forward(completions, poll)
        texts = decode(completions, self.tokenizer)
        scores = torch.tensor(self.reward.score(texts), dtype=torch.float32, device=logprobs.device)
        shaped = self._shaped(scores - self._prompt_scores(completions), completions.finished, moments)
        mask = completions.mask.float()
        kl = kl_per_token(logprobs, ref_logprobs, self.params.kl_estimator) * mask
        rewards = token_rewards(shaped, kl, mask, kl_coef)
        if self.params.whiten_rewards:
            rewards = whiten(rewards, mask, self.replicas.sum, shift_mean=False)
        advantages, returns = gae(rewards, values, mask, self.params.gamma, self.params.lam)
        if self.params.whiten_advantages:
            advantages = whiten(advantages, mask, self.replicas.sum)
        return Experience(
            completions, texts, scores, logprobs, ref_logprobs, entropies, values, kl, rewards, advantages, returns
        )

    def _forward(self, completions: Completions, poll: Callable[[], None]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        config = LogitsConfig(self.params.temperature, self.params.logprob_chunk_size)
        size = self.params.per_device_rollout_batch_size
        own_adapter = self.backbone.has(Role.VALUE)
        policy = score_completions(
            self.backbone,
            Role.POLICY,
            completions,
            config,
            batch_size=size,
            value_head=None if own_adapter else self.value_head,
            with_entropy=True,
            poll=poll,
        )
        reference = score_completions(self.backbone, Role.REFERENCE, completions, config, batch_size=size, poll=poll)
        values = policy.values
        if values is None:
            values = score_values(self.backbone, completions, self.value_head, size, poll)
        return policy.logprobs, policy.entropies, reference.logprobs, values

    def _prompt_scores(self, completions: Completions) -> Tensor:
        """What is subtracted from the scores, (B,): the reward of each prompt alone, or nothing.

        A function of the first state only, so the best policy stays the best (Ng et al., 1999, "Policy invariance under
        reward transformations"), but the variance that prompts bring into advantages is gone.
        """
        if not self.params.reward.subtract_prompt:
            return torch.zeros(len(completions.lengths), device=completions.lengths.device)
        prompts = [prompt for prompt, _ in completions.token_lists()]
        texts = list(self.tokenizer.batch_decode(prompts, skip_special_tokens=True))
        return torch.tensor(self.reward.score(texts), dtype=torch.float32, device=completions.lengths.device)

    def _shaped(self, scores: Tensor, finished: Tensor, moments: RunningMoments) -> Tensor:
        if self.params.missing_eos_penalty is not None:
            scores = scores - self.params.missing_eos_penalty * (~finished).float()
        if self.params.scale_rewards:
            moments.update(scores, self.replicas.sum)
            scores = scores / moments.std
        if self.params.clip_rewards is not None:
            scores = scores.clamp(-self.params.clip_rewards, self.params.clip_rewards)
        return scores


def decode(completions: Completions, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The text of each prompt with its completion, without special tokens."""
    rows = [prompt + new for prompt, new in completions.token_lists()]
    return list(tokenizer.batch_decode(rows, skip_special_tokens=True))

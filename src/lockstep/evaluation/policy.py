"""Reference and policy on the same held-out prompts with the same noise: reward, judge, divergence, diversity, text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from transformers import PreTrainedTokenizerBase

from lockstep.evaluation.statistics import distinct_n, paired_gain
from lockstep.params.ppo import PpoParams
from lockstep.training.ppo.experience import decode
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.prompts import tokenize_prompts
from lockstep.training.ppo.rewards import Reward
from lockstep.training.ppo.roles import Backbone, Role
from lockstep.training.ppo.rollout import Completions, eos_token_ids, generate
from lockstep.training.ppo.sampling import Stream, uniforms
from lockstep.training.ppo.scoring import LogitsConfig, score_completions


@dataclass(frozen=True)
class Sample:
    """One held-out prompt, completed by both."""

    prompt: str
    reference: str
    policy: str
    reward_reference: float
    reward_policy: float
    judge_reference: float
    judge_policy: float
    kl: float
    """Summed over the policy's tokens, in nats: log-probability under the policy minus under the reference."""
    num_tokens: int
    """Tokens of the policy's completion."""


@dataclass(frozen=True)
class Comparer:
    """What is needed to let both roles complete prompts and to judge what they wrote."""

    backbone: Backbone
    tokenizer: PreTrainedTokenizerBase
    reward: Reward
    judge: Reward
    params: PpoParams
    max_new_tokens: int
    seed: int
    poll: Callable[[], None]

    def compare(self, prompts: list[str], replicas: Replicas) -> list[Sample]:
        """One sample per prompt, in order; the prompts are shared out over the ranks. Collective."""
        mine = list(range(replicas.rank, len(prompts), replicas.world_size))
        samples = self._samples([prompts[index] for index in mine], mine) if mine else []
        if replicas.world_size == 1:
            return samples
        gathered: list[list[Sample]] = [[] for _ in range(replicas.world_size)]
        dist.all_gather_object(gathered, samples)
        return [gathered[index % replicas.world_size][index // replicas.world_size] for index in range(len(prompts))]

    def _samples(self, prompts: list[str], indices: list[int]) -> list[Sample]:
        reference = self._complete(Role.REFERENCE, prompts, indices)
        policy = self._complete(Role.POLICY, prompts, indices)
        texts = {role: decode(found, self.tokenizer) for role, found in (("ref", reference), ("pol", policy))}
        rewards = {role: self.reward.score(found) for role, found in texts.items()}
        verdicts = {role: self.judge.score(found) for role, found in texts.items()}
        kl = self._kl(policy)
        lengths = policy.lengths.tolist()
        return [
            Sample(
                prompt,
                texts["ref"][row],
                texts["pol"][row],
                rewards["ref"][row],
                rewards["pol"][row],
                verdicts["ref"][row],
                verdicts["pol"][row],
                kl[row],
                lengths[row],
            )
            for row, prompt in enumerate(prompts)
        ]

    def _complete(self, role: Role, prompts: list[str], indices: list[int]) -> Completions:
        return generate(
            self.backbone,
            role,
            tokenize_prompts(prompts, self.tokenizer, self.params.max_prompt_length),
            uniforms(self.seed, Stream.EVALUATION, 0, indices, self.max_new_tokens),
            eos_token_ids=eos_token_ids(self.backbone, self.tokenizer),
            pad_token_id=int(self.tokenizer.pad_token_id),
            temperature=self.params.temperature,
            batch_size=self.params.per_device_rollout_batch_size,
            poll=self.poll,
        )

    def _kl(self, completions: Completions) -> list[float]:
        config = LogitsConfig(self.params.temperature, self.params.logprob_chunk_size)
        size = self.params.per_device_rollout_batch_size
        scored = [
            score_completions(self.backbone, role, completions, config, batch_size=size, poll=self.poll).logprobs
            for role in (Role.POLICY, Role.REFERENCE)
        ]
        return [float(value) for value in (scored[0] - scored[1]).double().sum(dim=1)]


def policy_metrics(samples: list[Sample]) -> dict[str, Any]:
    """What `results/evaluate/metrics.json` says below `ppo`."""
    reward = paired_gain([s.reward_reference for s in samples], [s.reward_policy for s in samples])
    judge = paired_gain([s.judge_reference for s in samples], [s.judge_policy for s in samples])
    diversity = {
        "reference": distinct_n([s.reference for s in samples]),
        "policy": distinct_n([s.policy for s in samples]),
    }
    return {
        "num_prompts": len(samples),
        "reward_reference": _mean([s.reward_reference for s in samples]),
        "reward_policy": _mean([s.reward_policy for s in samples]),
        "reward_gain": reward.mean,
        "reward_gain_ci95": reward.bounds,
        "judge_reference": _mean([s.judge_reference for s in samples]),
        "judge_policy": _mean([s.judge_policy for s in samples]),
        "judge_gain": judge.mean,
        "judge_gain_ci95": judge.bounds,
        "kl_per_token": math.fsum(s.kl for s in samples) / max(1, sum(s.num_tokens for s in samples)),
        "distinct2_reference": diversity["reference"],
        "distinct2_policy": diversity["policy"],
        "distinct2_ratio": diversity["policy"] / max(diversity["reference"], 1e-12),
    }


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)

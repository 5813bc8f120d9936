"""The update: minibatches and epochs over one step's experience, each role's backward inside that role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep.params.ppo import PpoParams
from lockstep.training.ppo.experience import Experience
from lockstep.training.ppo.guards import Guards
from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.objective import entropy_bonus, policy_loss, value_loss
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.roles import Backbone, Role
from lockstep.training.ppo.sampling import Stream, permutation
from lockstep.training.ppo.scoring import LogitsConfig, completion_states, token_logprobs
from lockstep.training.ppo.stats import MinibatchStats, UpdateStats


def minibatch_slots(params: PpoParams, seed: int, step: int, epoch: int) -> Iterator[list[int]]:
    """The places in the rollout batch that make up each minibatch of an epoch.

    They follow from the parameters and not from the ranks at work, so an elastic resume takes the same optimiser steps.
    On `num_processes` ranks each holds an equal part of every minibatch.
    """
    size = params.mini_batch_size
    order = permutation(seed, Stream.MINIBATCHES, step, epoch, params.prompts_per_rank)
    for start in range(0, params.prompts_per_rank, size):
        yield [
            share * params.prompts_per_rank + row
            for share in range(params.num_processes)
            for row in order[start : start + size]
        ]


@dataclass(frozen=True)
class Updater:
    """Applies experience to the policy adapter, the value adapter (if any) and the value head."""

    backbone: Backbone
    value_head: ScalarHead
    optimizer: torch.optim.Optimizer
    params: PpoParams
    replicas: Replicas
    guards: Guards
    seed: int

    def update(self, experience: Experience, step: int) -> UpdateStats:
        """Runs num_ppo_epochs × num_mini_batches optimiser steps, fewer if approxkl exceeds target_kl."""
        stats = UpdateStats()
        for rows in self._minibatches(step):
            minibatch = self._backward(experience, rows)
            stats.minibatches.append(minibatch)
            if self.params.target_kl is not None and minibatch.approx_kl > self.params.target_kl:
                self.optimizer.zero_grad(set_to_none=True)
                stats.stopped_early = True
                break
            self._apply(minibatch, first=len(stats.minibatches) == 1)
        return stats

    def _minibatches(self, step: int) -> Iterator[list[int]]:
        """This rank's rows of each minibatch; none where an elastic resume left it none of them."""
        mine = self.replicas.share(self.params.rollout_batch_size)
        for epoch in range(self.params.num_ppo_epochs):
            for slots in minibatch_slots(self.params, self.seed, step, epoch):
                yield [slot - mine.start for slot in slots if slot in mine]

    def _backward(self, experience: Experience, rows: list[int]) -> MinibatchStats:
        """Accumulates the gradient of the minibatch `rows` over micro-batches."""
        index = torch.tensor(rows, dtype=torch.long, device=experience.scores.device)
        num_tokens = self.replicas.sum(experience.completions.mask[index].sum()).clamp(min=1)
        sums = torch.zeros(7, device=experience.scores.device)
        worst = torch.zeros((), device=experience.scores.device)
        for micro in index.split(self.params.per_device_train_batch_size) if rows else ():
            micro_sums, micro_worst = self._micro_batch(experience, micro, num_tokens)
            sums += micro_sums
            worst = torch.maximum(worst, micro_worst)
        sums, worst = self.replicas.sum(sums), self.replicas.max(worst)
        policy, value, *totals = sums.tolist()
        clipped, value_clipped, approx_kl, ratio, advantage = (total / float(num_tokens) for total in totals)
        return MinibatchStats(policy, value, clipped, value_clipped, approx_kl, ratio, advantage, float(worst))

    def _micro_batch(self, experience: Experience, rows: Tensor, num_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Backward of one micro-batch; returns its sums for `MinibatchStats` and the largest |ratio - 1|."""
        params, batch = self.params, experience.completions.rows(rows)
        mask = batch.mask.float()
        config = LogitsConfig(params.temperature, params.logprob_chunk_size)
        with self.backbone.role(Role.POLICY):
            states = completion_states(self.backbone, batch)
            logprobs, entropies = token_logprobs(
                self.backbone, states, batch, config, with_entropy=params.entropy_coef > 0
            )
            policy = policy_loss(
                logprobs,
                experience.logprobs[rows],
                experience.advantages[rows],
                mask,
                params.cliprange,
                num_tokens,
            )
            (policy.loss - params.entropy_coef * entropy_bonus(entropies, mask, num_tokens)).backward()
        own_adapter = self.backbone.has(Role.VALUE)
        with self.backbone.role(Role.VALUE if own_adapter else Role.POLICY):
            value_states = completion_states(self.backbone, batch) if own_adapter else states.detach()
            value = value_loss(
                self.value_head(value_states),
                experience.values[rows],
                experience.returns[rows],
                mask,
                params.cliprange_value,
                num_tokens,
            )
            (params.vf_coef * value.loss).backward()
        magnitude = experience.advantages[rows].abs().sum()
        sums = (policy.loss, value.loss, policy.clipped, value.clipped, policy.approx_kl, policy.ratio, magnitude)
        return torch.stack([term.detach().float() for term in sums]), policy.max_ratio_error

    def _apply(self, stats: MinibatchStats, *, first: bool) -> None:
        """Sums gradients over ranks, clips each role's apart, and takes the optimiser step if the guards allow it.

        Apart, because a critic that starts at zero has large errors, and one joint norm would shrink the policy's step.
        """
        policy, value = self._parameters_of(Role.POLICY), self._parameters_of(Role.VALUE)
        self.replicas.sum_gradients([*policy, *value])
        stats.policy_grad_norm = self._clip(policy)
        stats.value_grad_norm = self._clip(value)
        self.guards.check_minibatch(stats, first=first)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _parameters_of(self, role: Role) -> list[nn.Parameter]:
        groups = [group["params"] for group in self.optimizer.param_groups if group["role"] == role]
        return [parameter for group in groups for parameter in group]

    def _clip(self, parameters: list[nn.Parameter]) -> float:
        limit = self.params.max_grad_norm or float("inf")
        return float(nn.utils.clip_grad_norm_(parameters, limit))

"""The engine: one PPO step is a rollout, its scoring, and an update. No files, no tracking, no stopping of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lockstep.foundation.errors import UsageError
from lockstep.params.ppo import PpoParams
from lockstep.training.ppo.experience import Experience, Scorer
from lockstep.training.ppo.guards import Guards
from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.kl import KlController
from lockstep.training.ppo.memory import PeakMemory, bytes_per_phase, bytes_per_role
from lockstep.training.ppo.metrics import objective_metrics, update_metrics
from lockstep.training.ppo.optimizer import build_optimizer, set_learning_rate
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.prompts import Prompts
from lockstep.training.ppo.rewards import Reward
from lockstep.training.ppo.roles import Backbone, Role, disable_dropout
from lockstep.training.ppo.rollout import Completions, eos_token_ids, generate
from lockstep.training.ppo.sampling import Stream, uniforms
from lockstep.training.ppo.state import Progress, TrainState
from lockstep.training.ppo.update import Updater


@dataclass(frozen=True)
class StepResult:
    """One step: what was tried and what came of it."""

    experience: Experience
    metrics: dict[str, float]


class PpoEngine:
    """Policy, reference, critic and reward on one backbone, and the optimiser over what is trained."""

    def __init__(
        self,
        backbone: Backbone,
        reward: Reward,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Prompts,
        params: PpoParams,
        seed: int,
        replicas: Replicas,
    ) -> None:
        """Puts the backbone into training mode; the value head starts at zero.

        Raises UsageError where the ranks cannot share out the rollout batch.
        """
        if params.rollout_batch_size % replicas.world_size:
            raise UsageError(
                f"ppo.rollout_batch_size ({params.rollout_batch_size}) does not divide over {replicas.world_size} "
                "ranks; choose a number of ranks that divides it."
            )
        self.backbone, self.tokenizer, self.params, self.seed = backbone, tokenizer, params, seed
        self.prompts, self.reward, self._replicas = prompts, reward, replicas
        self.value_head = ScalarHead(backbone.hidden_size).to(backbone.device)
        self._prepare_backbone()
        self.optimizer = build_optimizer(backbone, self.value_head, params)
        self.state = TrainState(
            backbone,
            self.value_head,
            self.optimizer,
            Progress(KlController(params.kl_coef, params.kl_target, params.kl_horizon)),
        )
        self.memory = PeakMemory(backbone.device)
        self.guards = Guards(params.guards, exact=backbone.is_exact, dropout=not params.disable_dropout)
        self._scorer = Scorer(backbone, self.value_head, reward, tokenizer, params, replicas)
        self._updater = Updater(backbone, self.value_head, self.optimizer, params, replicas, self.guards, seed)

    def step(self, poll: Callable[[], None] = lambda: None) -> StepResult:
        """Runs one step and moves `state.progress` on.

        poll: called in rollout and scoring; if it raises, nothing has changed and the step can be repeated to the bit.
        Raises DoNotRetryError when a guard is violated.
        """
        progress = self.state.progress
        started = time.perf_counter()
        with self.memory.phase("rollout"):
            completions = self._roll_out(poll)
        with self.memory.phase("scoring"):
            experience = self._scorer.experience(completions, progress.kl.coefficient, progress.moments, poll)
        rolled_out = time.perf_counter()
        self._check_start(experience)
        metrics = objective_metrics(experience, self._replicas)
        metrics["objective/kl_coef"] = progress.kl.coefficient
        metrics["learning_rate"] = set_learning_rate(self.optimizer, progress.step, self.params)
        with self.memory.phase("update"):
            stats = self._updater.update(experience, progress.step)
        updated = time.perf_counter()
        metrics |= update_metrics(stats)
        num_tokens = int(self._replicas.sum(completions.lengths.sum()))
        self._advance(metrics["objective/kl_per_token"], num_tokens)
        metrics["num_tokens"] = progress.num_tokens
        metrics["tokens_per_s/rollout"] = num_tokens / (rolled_out - started)
        metrics["tokens_per_s/update"] = num_tokens * self.params.num_ppo_epochs / (updated - rolled_out)
        metrics["time/step_s"] = updated - started
        metrics["memory/peak"] = self.memory.largest
        self.guards.check_step(metrics)
        return StepResult(experience, metrics)

    def memory_table(self) -> dict[str, int]:
        """Bytes by name: what stays (per role), and what comes and goes (per phase), by counting and arithmetic."""
        stays = bytes_per_role(self.backbone, self.value_head, self.params)
        return stays | bytes_per_phase(self.backbone, self.params)

    def _roll_out(self, poll: Callable[[], None]) -> Completions:
        progress = self.state.progress
        share = list(self._replicas.share(self.params.rollout_batch_size))
        prompts = [self.prompts.at(progress.cursor + slot) for slot in share]
        noise = uniforms(self.seed, Stream.ROLLOUT, progress.step, share, self.params.max_new_tokens)
        return self.complete(Role.POLICY, prompts, noise, poll)

    def complete(
        self, role: Role, prompts: list[list[int]], noise: Tensor, poll: Callable[[], None] = lambda: None
    ) -> Completions:
        """Completes tokenised prompts under `role`; see `rollout.generate`."""
        return generate(
            self.backbone,
            role,
            prompts,
            noise,
            eos_token_ids=eos_token_ids(self.backbone, self.tokenizer),
            pad_token_id=int(self.tokenizer.pad_token_id),
            temperature=self.params.temperature,
            batch_size=self.params.per_device_rollout_batch_size,
            poll=poll,
        )

    def _check_start(self, experience: Experience) -> None:
        if self.state.progress.step == 0:
            largest = (experience.logprobs - experience.ref_logprobs).abs().max()
            self.guards.check_start(float(self._replicas.max(largest)))

    def _advance(self, kl_per_token: float, num_tokens: int) -> None:
        progress = self.state.progress
        progress.kl.update(kl_per_token, self.params.rollout_batch_size)
        progress.num_tokens += num_tokens
        progress.cursor += self.params.rollout_batch_size
        progress.step += 1

    def _prepare_backbone(self) -> None:
        if self.params.disable_dropout:
            disable_dropout(self.backbone.model)
        if self.params.gradient_checkpointing:
            self.backbone.enable_checkpointing()
        self.backbone.model.train()

"""What is watched while training: each guard names what it saw, what it means and how to mend it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from lockstep.foundation.errors import DoNotRetryError
from lockstep.params.ppo import GuardParams
from lockstep.training.ppo.stats import MinibatchStats

logger = logging.getLogger(__name__)

_TOLERANCE, _ROUNDED_TOLERANCE = 1e-4, 0.5
"""Of the first ratio. LLM.int8 looks for outliers over the whole batch, so a row's numbers depend on its neighbours."""


class Guards:
    """Checks numbers that are equal on all ranks, so that all of them stop together or none."""

    def __init__(self, params: GuardParams, *, exact: bool, dropout: bool) -> None:
        """exact: the backbone computes in fp32. With dropout on, nothing is asked of the first ratio."""
        self._params = params
        self._ratio_tolerance = params.ratio_tolerance or (_TOLERANCE if exact else _ROUNDED_TOLERANCE)
        self._ratio_is_one = not dropout
        self._warned: set[str] = set()

    def check_start(self, largest_log_ratio: float) -> None:
        """At step 0 the policy is the reference: |log p_policy - log p_ref| is zero at every token."""
        if largest_log_ratio > self._params.start_kl_tolerance:
            self._violated(
                "start_kl",
                f"before the first update the policy differs from the reference by {largest_log_ratio:.2e} nats at a "
                f"token (allowed: {self._params.start_kl_tolerance:.0e}). Sampling and scoring disagree, or the "
                "adapter is not the reference's. With a quantised backbone raise ppo.guards.start_kl_tolerance",
            )

    def check_minibatch(self, stats: MinibatchStats, *, first: bool) -> None:
        """Before each optimiser step; `first` of its PPO step, where the policy is still the one that sampled.

        Numbers that are not finite and a policy without a gradient always stop the run.
        """
        numbers = (stats.policy_loss, stats.value_loss, stats.policy_grad_norm, stats.value_grad_norm)
        if not all(math.isfinite(number) for number in numbers):
            raise DoNotRetryError(
                f"policy loss {stats.policy_loss}, value loss {stats.value_loss}, gradient norms "
                f"{stats.policy_grad_norm} and {stats.value_grad_norm}: one is not finite. The step was not applied, "
                "and the last checkpoint is good. Lower ppo.learning_rate, or set ppo.clip_rewards"
            )
        if first and stats.policy_grad_norm == 0 and stats.mean_advantage > 0:
            raise DoNotRetryError(
                "the policy adapter got no gradient although advantages are not zero: its graph is cut. With NF4 on a "
                "CPU this is bitsandbytes' repacked kernel; otherwise please report it with params.yaml"
            )
        if first and self._ratio_is_one and stats.max_ratio_error > self._ratio_tolerance:
            self._violated(
                "first_ratio",
                f"in the first minibatch of a step a probability ratio is off 1 by {stats.max_ratio_error:.2e} "
                f"(allowed: {self._ratio_tolerance:.0e}): update and rollout score different distributions. "
                "If rounding in the backbone explains that much, raise ppo.guards.ratio_tolerance",
            )
        if self._params.max_ratio is not None and stats.ratio > self._params.max_ratio:
            self._violated(
                "max_ratio",
                f"the mean probability ratio of a minibatch is {stats.ratio:.1f} (allowed: {self._params.max_ratio}). "
                "Lower ppo.learning_rate or set ppo.target_kl",
            )

    def check_step(self, metrics: Mapping[str, float]) -> None:
        """After each step: how far the policy went from the reference, and whether its text is still text."""
        params = self._params
        kl, distinct, length = (
            metrics["objective/kl_per_token"],
            metrics["objective/distinct2"],
            metrics["objective/length"],
        )
        if params.max_kl is not None and kl > params.max_kl:
            self._violated(
                "max_kl",
                f"the policy is {kl:.2f} nats per token from the reference (allowed: {params.max_kl}). "
                "Raise ppo.kl_coef, set ppo.kl_target, or lower ppo.learning_rate",
            )
        if params.min_distinct is not None and distinct < params.min_distinct:
            self._violated(
                "min_distinct",
                f"only {distinct:.0%} of the completions' token pairs are distinct (needed {params.min_distinct:.0%}), "
                "the policy repeats itself. Raise ppo.kl_coef, or add ppo.entropy_coef",
            )
        if params.min_length is not None and length < params.min_length:
            self._violated(
                "min_length",
                f"completions have {length:.1f} tokens on average (needed: {params.min_length}): the policy stops at "
                "once. Raise ppo.kl_coef, or lower ppo.missing_eos_penalty",
            )

    def _violated(self, name: str, message: str) -> None:
        if self._params.on_violation == "stop":
            raise DoNotRetryError(f"{message}.\n(ppo.guards.on_violation: warn goes on regardless.)")
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("guard %s: %s", name, message)

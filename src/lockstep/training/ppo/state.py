"""Everything that decides the next step: what a checkpoint of PPO holds. Never the base; its hash stands for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.checkpoints.optimizer import OptimizerState
from lockstep.checkpoints.store import CheckpointStore, Found
from lockstep.training.common import random_state
from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.kl import KlController
from lockstep.training.ppo.normalisation import RunningMoments
from lockstep.training.ppo.roles import Backbone


@dataclass
class Progress:
    """Small facts that change from step to step."""

    kl: KlController
    moments: RunningMoments = field(default_factory=RunningMoments)
    step: int = 0
    """PPO steps done."""
    cursor: int = 0
    """Prompts taken, over all ranks: where the next step goes on."""
    num_tokens: int = 0
    """Tokens generated, over all ranks."""

    def facts(self) -> dict[str, Any]:
        """As JSON, exact to the bit."""
        return {
            "step": self.step,
            "cursor": self.cursor,
            "num_tokens": self.num_tokens,
            "kl_coefficient": self.kl.coefficient,
            "reward_moments": [self.moments.count, self.moments.mean, self.moments.squared_deviations],
        }

    def restore(self, facts: dict[str, Any]) -> None:
        """Takes over what `facts` gave."""
        self.step, self.cursor, self.num_tokens = facts["step"], facts["cursor"], facts["num_tokens"]
        self.kl.coefficient = facts["kl_coefficient"]
        self.moments = RunningMoments(*facts["reward_moments"])


class TrainState:
    """The trained tensors and the optimiser's state by name, beside the progress."""

    def __init__(
        self, backbone: Backbone, value_head: ScalarHead, optimizer: torch.optim.Optimizer, progress: Progress
    ) -> None:
        self.progress = progress
        self._parameters = trained_parameters(backbone, value_head)
        self._optimizer = OptimizerState(optimizer, self._parameters.items())

    def save(self, store: CheckpointStore) -> None:
        """Saves the state after `progress.step` steps (collective)."""
        store.save(
            self.progress.step,
            {**self._detached(), **self._optimizer.tensors()},
            per_rank={"random": random_state.capture()},
            facts={"progress": self.progress.facts(), "optimizer": self._optimizer.facts()},
        )

    def load(self, store: CheckpointStore, found: Found) -> None:
        """Takes over a checkpoint (collective). Random state comes back where as many ranks saved it as load it."""
        slots = self._optimizer.allocate(found.manifest.holds, found.manifest.facts["optimizer"])
        loaded = store.load(found, {**self._detached(), **slots})
        self.progress.restore(loaded.facts["progress"])
        if loaded.per_rank is not None:
            random_state.restore(loaded.per_rank["random"])

    def _detached(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self._parameters.items()}


def trained_parameters(backbone: Backbone, value_head: ScalarHead) -> dict[str, nn.Parameter]:
    """Every trained parameter by role and name: adapters first, then the value head."""
    adapters = {
        f"{role}/{name}": parameter
        for role in sorted(backbone.trainable)
        for name, parameter in backbone.parameters_of(role).items()
    }
    return adapters | {f"value_head/{name}": parameter for name, parameter in value_head.named_parameters()}

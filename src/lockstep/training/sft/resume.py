"""What decides the next step, and its way to the checkpoint store and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lockstep.checkpoints.optimizer import OptimizerState
from lockstep.checkpoints.store import CheckpointStore, Found
from lockstep.foundation.errors import DoNotRetryError, UsageError
from lockstep.training.common import random_state
from lockstep.training.common.determinism import derived_seed, seed_global_generators
from lockstep.training.common.ranks import Ranks
from lockstep.training.sft.scaling import restore_scaler, scaler_facts

WEIGHTS_PREFIX = "model/"
"""Before the name of a trained parameter in a checkpoint."""


@dataclass
class Counts:
    """What the run has seen so far, over all ranks. The data position is the step itself."""

    num_tokens: int = 0
    num_supervised_tokens: int = 0
    evaluated: bool = True
    """False where a stop came before the evaluation that was due: the next attempt makes it first."""


@dataclass(frozen=True)
class TrainingState:
    """Live references to everything that a checkpoint of this run holds."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler
    counts: Counts
    global_batch_size: int
    ranks: Ranks
    scaler: GradScaler | None = None

    def save(self, store: CheckpointStore, step: int, metric: float | None) -> None:
        """Saves the state after `step` steps. Collective. Raises as `CheckpointStore.save` does."""
        optimizer = self._optimizer_state()
        store.save(
            step,
            {**self._weights(), **optimizer.tensors()},
            per_rank={"random": random_state.capture()},
            facts={
                "optimizer": optimizer.facts(),
                "scheduler": self.scheduler.state_dict(),
                "scaler": scaler_facts(self.scaler),
                "counts": asdict(self.counts),
                "global_batch_size": self.global_batch_size,
            },
            metric=metric,
        )

    def restore(self, store: CheckpointStore, found: Found, *, seed: int, elastic: bool) -> None:
        """Goes back to the state of `found`, random generators included. Collective.

        On another number of ranks (`elastic`) there are no generators to go back to; each rank seeds its own from
        (seed, step, rank). Raises UsageError where the global batch differs, DoNotRetryError where ranks do unasked.
        """
        facts = found.manifest.facts
        self._check(found, elastic)
        optimizer = self._optimizer_state()
        allocated = optimizer.allocate(found.manifest.holds, facts["optimizer"])
        loaded = store.load(found, {**self._weights(), **allocated})
        self.scheduler.load_state_dict(facts["scheduler"])
        restore_scaler(self.scaler, facts["scaler"])
        for name, value in facts["counts"].items():
            setattr(self.counts, name, value)
        if loaded.per_rank is not None:
            random_state.restore(loaded.per_rank["random"])
        else:
            seed_global_generators(derived_seed(seed, "elastic", found.step, self.ranks.rank))

    def _check(self, found: Found, elastic: bool) -> None:
        saved_batch = found.manifest.facts["global_batch_size"]
        if saved_batch != self.global_batch_size:
            raise UsageError(
                f"{found.path} was trained with {saved_batch} sequences per step, this run has "
                f"{self.global_batch_size}: the data position would mean something else. Keep ranks × "
                f"per_device_train_batch_size × gradient_accumulation_steps at {saved_batch}."
            )
        if found.manifest.world_size != self.ranks.world_size and not elastic:
            raise DoNotRetryError(
                f"{found.path} was saved by {found.manifest.world_size} ranks and this attempt has "
                f"{self.ranks.world_size}. Go on with --elastic (losses agree, bits do not), or with as many ranks."
            )

    def _optimizer_state(self) -> OptimizerState:
        return OptimizerState(self.optimizer, self.model.named_parameters())

    def _weights(self) -> dict[str, Tensor]:
        return weights_to_save(self.model)


def weights_to_save(model: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by name, never a frozen base. (torch's state-dict helpers fail on int8 modules.)"""
    return {f"{WEIGHTS_PREFIX}{name}": p.detach() for name, p in model.named_parameters() if p.requires_grad}


def restore_weights(model: nn.Module, store: CheckpointStore, found: Found) -> Counts:
    """Loads the trained parameters only: for a run whose last step is done. Collective."""
    store.load(found, weights_to_save(model), partial=True)
    facts: dict[str, Any] = found.manifest.facts["counts"]
    return Counts(**facts)

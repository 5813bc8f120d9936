"""Ranks that act together: what one rank can't do, none believes done. Every method is collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch.distributed as dist

from lockstep.foundation.errors import LockstepError

T = TypeVar("T")


class RankError(LockstepError):
    """Something failed on one rank or more; raised on all of them with the same text."""


@dataclass(frozen=True)
class Ranks:
    """A CPU group that only the store uses, so that it may work beside training's collectives; or one process alone."""

    group: dist.ProcessGroup | None
    rank: int = 0
    world_size: int = 1

    @classmethod
    def create(cls, group: dist.ProcessGroup | None = None) -> Ranks:
        """Takes `group`, or makes a gloo group of all ranks (collective); alone without torch.distributed."""
        if group is None:
            if not dist.is_initialized():
                return cls(None)
            group = dist.new_group(backend="gloo")
        return cls(group, dist.get_rank(group), dist.get_world_size(group))

    @property
    def is_main(self) -> bool:
        """True on rank 0."""
        return self.rank == 0

    def agree(self, what: str, action: Callable[[], T]) -> list[T]:
        """Runs `action` on every rank and returns all results by rank; raises RankError on all if any rank failed."""
        outcomes = self._all_gather(_outcome(action))
        _raise_failures(what, outcomes)
        return [cast("T", value) for value, _ in outcomes]

    def main(self, what: str, action: Callable[[], T]) -> T:
        """Runs `action` on rank 0 and returns its result everywhere; raises RankError on all if it failed."""
        outcome: list[Any] = [_outcome(action) if self.is_main else None]
        if self.group is not None:
            dist.broadcast_object_list(outcome, group=self.group, group_src=0)
        _raise_failures(what, outcome)
        return cast("T", outcome[0][0])

    def _all_gather(self, value: Any) -> list[Any]:
        if self.group is None:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value, group=self.group)
        return gathered


ALONE = Ranks(None)
"""One process, whatever torch.distributed has set up."""


def describe(error: BaseException) -> str:
    """An error in one line for people."""
    return str(error) if isinstance(error, (LockstepError, OSError)) else f"{type(error).__name__}: {error}"


def failure(what: str, errors: dict[int, str]) -> RankError:
    """One error out of those of several ranks, each text once."""
    texts = sorted(set(errors.values()))
    lines = [f"rank {','.join(str(r) for r in sorted(errors) if errors[r] == text)}: {text}" for text in texts]
    return RankError(f"{what}: " + "; ".join(lines))


def _outcome(action: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return action(), None
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it instead of waiting
        return None, describe(error)


def _raise_failures(what: str, outcomes: list[Any]) -> None:
    errors = {rank: error for rank, (_, error) in enumerate(outcomes) if error is not None}
    if errors:
        raise failure(what, errors)

"""Which rows each rank sees at which step: a function of the step alone, so a resume seeks and replays nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.utils.data import Sampler

from lockstep.data.order import EpochOrder
from lockstep.foundation.errors import UsageError


@dataclass(frozen=True)
class BatchShape:
    """How a global batch falls into micro-batches: sample = step·G + (micro·ranks + rank)·B + row.

    So the rows of a step do not depend on the number of ranks, as long as the global batch G is the same.
    """

    rank: int
    world_size: int
    per_device: int
    num_accumulation_steps: int

    @classmethod
    def of_global_size(cls, size: int, *, rank: int, world_size: int, per_device: int) -> BatchShape:
        """As many micro-batches per step as make up `size` rows on these ranks (elastic resume changes only that).

        Raises UsageError when `size` cannot be divided so.
        """
        if size % (world_size * per_device):
            raise UsageError(
                f"A global batch of {size} rows does not divide over {world_size} ranks with {per_device} rows each; "
                "choose a number of ranks that divides it."
            )
        return cls(rank, world_size, per_device, size // (world_size * per_device))

    @property
    def global_size(self) -> int:
        """Rows per optimiser step, G: sequences, or pairs of them."""
        return self.world_size * self.per_device * self.num_accumulation_steps

    def samples(self, step: int, micro: int) -> range:
        """Global sample indices of one micro-batch of this rank."""
        start = step * self.global_size + (micro * self.world_size + self.rank) * self.per_device
        return range(start, start + self.per_device)


class StepSampler(Sampler[list[int]]):
    """The rows of this rank's micro-batches, from `start_step` to `max_steps`."""

    def __init__(self, order: EpochOrder, shape: BatchShape, *, start_step: int, max_steps: int) -> None:
        self._order = order
        self._shape = shape
        self._start_step = start_step
        self._max_steps = max_steps

    def __len__(self) -> int:
        """Micro-batches of the whole run, from which the trainer derives its one epoch."""
        return self._max_steps * self._shape.num_accumulation_steps

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self._start_step, self._max_steps):
            for micro in range(self._shape.num_accumulation_steps):
                yield [self._order.row(sample) for sample in self._shape.samples(step, micro)]

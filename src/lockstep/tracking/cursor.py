"""How far a spool has been sent to MLflow: which lines are new, which values repeat what an earlier attempt sent.

Everything here follows from the spool alone, so sending from the start again gives the very same points. MLflow keeps
an equal (key, step, time, value) once: a crash between a batch and the note that it arrived does no harm.
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from lockstep.foundation.files import read_json, write_json
from lockstep.tracking.spool import Point, read_points

MAX_BATCH = 1000
"""MLflow's limit of metrics in one batch."""


class Sample(NamedTuple):
    """One value of one metric, as MLflow stores it."""

    key: str
    value: float
    time_ms: int
    step: int


@dataclass
class Cursor:
    """A position in one spool."""

    offset: int = 0
    attempt: int = 0
    highest: dict[str, int] = field(default_factory=dict)
    """Per metric the highest step passed so far."""
    newest: dict[str, float | None] = field(default_factory=dict)
    """The value there; None for one that is not finite."""
    replayed: dict[str, int] = field(default_factory=dict)
    """The highest steps when the current attempt began: up to there a resumed attempt repeats what was sent."""

    def take(self, point: Point) -> list[Sample]:
        """Moves behind `point` and returns its values without those that repeat an earlier attempt's step."""
        if point.attempt != self.attempt:
            self.attempt, self.replayed = point.attempt, dict(self.highest)
        samples = [
            Sample(key, value, point.time_ms, point.step)
            for key, value in point.values.items()
            if point.step > self.replayed.get(key, point.step - 1)
        ]
        for key, value, _, step in samples:
            if step >= self.highest.get(key, step):
                self.highest[key], self.newest[key] = step, value if math.isfinite(value) else None
        self.offset = point.end
        return samples

    def next_batch(self, spool: Path) -> tuple[list[Sample], Cursor]:
        """The next whole lines, about one batch of them, and the cursor behind them: ours once they have arrived.

        No samples are left when the list is empty. A single line may hold more than one batch.
        """
        behind, samples = copy.deepcopy(self), list[Sample]()
        for point in read_points(spool, self.offset):
            samples += behind.take(point)
            if len(samples) + len(point.values) > MAX_BATCH:
                break
        return samples, behind


@dataclass
class SendState:
    """What MLflow is known to hold of one execution; kept in the run directory, rebuilt when it is lost."""

    uri: str
    run_id: str | None = None
    described: bool = False
    cursors: dict[str, Cursor] = field(default_factory=dict)
    """By spool file name."""
    models: list[str] = field(default_factory=list)
    """Names of checkpoints that are registered."""
    artifacts: dict[str, str] = field(default_factory=dict)
    """sha256 of each file that was uploaded."""
    final_status: str | None = None

    @classmethod
    def load(cls, path: Path, uri: str) -> Self:
        """The state kept at `path`, or a fresh one when there is none or it is about another server."""
        if path.exists():
            kept: dict[str, Any] = read_json(path)
            if kept["uri"] == uri:
                kept["cursors"] = {name: Cursor(**cursor) for name, cursor in kept["cursors"].items()}
                return cls(**kept)
        return cls(uri)

    def save(self, path: Path) -> None:
        """Keeps the state; called after MLflow acknowledged what it says."""
        write_json(path, asdict(self))

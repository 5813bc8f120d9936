"""Where two runs' curves part: the first step at which a metric has other bits, and by how much it differs after."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lockstep.runs.directory import RunDirectory
from lockstep.tracking.spool import curve

DECISIVE = {
    "sft": ("loss", "grad_norm"),
    "reward": ("loss",),
    "ppo": ("objective/score", "objective/kl", "policy/loss"),
}
"""Per stage, the metrics that training decides; speeds and memory are not compared."""


@dataclass(frozen=True)
class Parting:
    """How one metric compares over the steps that both runs have."""

    metric: str
    num_steps: int
    first_step: int | None
    """First step with other bits; None when all are equal."""
    largest_relative: float
    """Largest |a - b| / max(|a|, |b|, 1e-12) over all steps; 0.0 when equal, infinite where one is not finite."""


def partings(stage: str, left: RunDirectory, right: RunDirectory) -> list[Parting]:
    """One comparison per decisive metric that both runs recorded."""
    found = []
    for metric in DECISIVE.get(stage, ()):
        a, b = dict(curve(left.metrics, metric)), dict(curve(right.metrics, metric))
        if steps := sorted(a.keys() & b.keys()):
            found.append(_compare(metric, [(step, a[step], b[step]) for step in steps]))
    return found


def _compare(metric: str, rows: list[tuple[int, float, float]]) -> Parting:
    apart = [step for step, a, b in rows if not _same(a, b)]
    largest = max(_relative(a, b) for _, a, b in rows)
    return Parting(metric, len(rows), apart[0] if apart else None, largest)


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _relative(a: float, b: float) -> float:
    if _same(a, b):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), 1e-12)

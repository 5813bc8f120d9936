"""`lockstep compare`: two recorded runs, what was locked differently, and whether they came out the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from lockstep.foundation.errors import UsageError
from lockstep.records.curves import Parting, partings
from lockstep.records.differences import Difference, differences
from lockstep.runs.directory import RunDirectory

DEFAULT_TOLERANCE = 1e-2


class Verdict(StrEnum):
    """How two runs came out."""

    IDENTICAL = "identical"
    WITHIN_TOLERANCE = "within tolerance"
    DIFFERENT = "different"


EXIT_CODES = {Verdict.IDENTICAL: 0, Verdict.WITHIN_TOLERANCE: 10, Verdict.DIFFERENT: 11}


@dataclass(frozen=True)
class Comparison:
    """Two runs beside each other."""

    left: str
    right: str
    stage: str
    verdict: Verdict
    tolerance: float
    differences: list[Difference]
    partings: list[Parting]

    @property
    def exit_code(self) -> int:
        """0 identical, 10 within tolerance, 11 different."""
        return EXIT_CODES[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """Plain data; the likeliest explanation stands first in `differences`."""
        return {**asdict(self), "verdict": self.verdict.value}

    def text(self) -> str:
        """For a terminal."""
        lines = [f"{self.stage} {self.left} and {self.right}: {self.verdict}"]
        lines += [f"  {_parting_line(parting)}" for parting in self.partings]
        if self.differences:
            lines += ["What differs, likeliest explanation first:"]
            lines += [f"  {difference.line()}" for difference in self.differences]
        elif self.verdict is not Verdict.IDENTICAL:
            lines.append("All recorded locks are equal; look at what no lock holds (a driver, a race).")
        return "\n".join(lines)


def compare(left: RunDirectory, right: RunDirectory, tolerance: float = DEFAULT_TOLERANCE) -> Comparison:
    """Compares two runs of one stage.

    Identical: equal weights (or equal outputs where a stage makes none); for a run that was ended early, equal bits of
    every decisive metric at every common step. Within tolerance: every decisive metric stays within the relative
    `tolerance`. Raises UsageError for runs of two stages, or one that was never begun.
    """
    a, b = _begun(left), _begun(right)
    if a["stage"] != b["stage"]:
        raise UsageError(f"{left.root.name} is a run of {a['stage']} and {right.root.name} of {b['stage']}.")
    found = partings(a["stage"], left, right)
    return Comparison(
        left=left.root.name,
        right=right.root.name,
        stage=a["stage"],
        verdict=_verdict(a["result"], b["result"], found, tolerance),
        tolerance=tolerance,
        differences=differences(left, right),
        partings=found,
    )


def _begun(directory: RunDirectory) -> dict[str, Any]:
    record = directory.read()
    if not record or not record["attempts"]:
        raise UsageError(f"Run {directory.root.name} was never begun; there is nothing to compare.")
    return record


def _verdict(a: dict[str, Any], b: dict[str, Any], found: list[Parting], tolerance: float) -> Verdict:
    if a and b:
        key = "weights_sha256" if a.get("weights_sha256") else "outputs_sha256"
        same = a.get(key) == b.get(key)
    else:
        same = bool(found) and all(parting.first_step is None for parting in found)
    if same:
        return Verdict.IDENTICAL
    if found and all(parting.largest_relative <= tolerance for parting in found):
        return Verdict.WITHIN_TOLERANCE
    return Verdict.DIFFERENT


def _parting_line(parting: Parting) -> str:
    if parting.first_step is None:
        return f"{parting.metric}: equal bits over {parting.num_steps} common steps"
    return (
        f"{parting.metric}: equal up to step {parting.first_step - 1}, other bits from step {parting.first_step} on, "
        f"largest relative difference {parting.largest_relative:.2g}"
    )

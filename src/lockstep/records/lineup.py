"""`lockstep compare` of more than two runs: each beside the first, as one table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import write_atomic
from lockstep.records.compare import DEFAULT_TOLERANCE, Comparison, compare
from lockstep.reporting.overlay import KINDS, overlay_page
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.spool import curves

_WIDE = 1000
_CELL = 28


@dataclass(frozen=True)
class Lineup:
    """Runs of one stage, and the comparison of each further one with the first."""

    runs: list[RunDirectory]
    comparisons: list[Comparison]

    @property
    def exit_code(self) -> int:
        """That of the comparison that came out worst."""
        return max(comparison.exit_code for comparison in self.comparisons)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "first": self.comparisons[0].left,
            "stage": self.comparisons[0].stage,
            "comparisons": [comparison.as_json() for comparison in self.comparisons],
        }

    def text(self) -> str:
        """A row per run, and a column for each lock in which any of them differs from the first."""
        locks = self._locks()
        view = Table("run", "beside the first", "equal up to", "largest difference", *locks, box=SIMPLE)
        view.add_row(self.comparisons[0].left, "", "", "", *(_text(first) for first in locks.values()))
        for comparison in self.comparisons:
            others = {difference.name: difference.right for difference in comparison.differences}
            cells = [_text(others[name]) if name in others else "·" for name in locks]
            view.add_row(comparison.right, str(comparison.verdict), *_apart(comparison), *cells)
        console = Console(width=_WIDE)
        with console.capture() as capture:
            console.print(view)
        lines = [line.rstrip() for line in capture.get().splitlines()]
        return "\n".join([f"{self.comparisons[0].stage}: {len(self.comparisons) + 1} runs", *lines]).rstrip()

    def _locks(self) -> dict[str, Any]:
        """The locks that differ, likeliest explanation first, and the first run's values."""
        found = sorted(
            {(d.rank, d.name): d.left for comparison in self.comparisons for d in comparison.differences}.items(),
            key=lambda item: item[0],
        )
        return {name: left for (_, name), left in found}


def line_up(runs: list[RunDirectory], tolerance: float = DEFAULT_TOLERANCE) -> Lineup:
    """Compares every further run with the first. Raises UsageError for fewer than two, and as `compare` does."""
    if len(runs) < 2:
        raise UsageError("One run is nothing to compare.\nName two or more; `./lockstep status` lists what there is.")
    return Lineup(runs, [compare(runs[0], other, tolerance) for other in runs[1:]])


def draw(lineup: Lineup, words: str, target: Path) -> None:
    """Writes the curves of all runs over each other to the HTML page `target`.

    Raises UsageError for more runs than colours, or a target whose folder is not there.
    """
    if len(lineup.runs) > len(KINDS):
        raise UsageError(f"A picture tells {len(KINDS)} runs apart, and {len(lineup.runs)} are named; name fewer.")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is not a folder; --picture names a file in one that exists.")
    drawn = {}
    for number, run in enumerate(lineup.runs, 1):
        # The same run carried here from elsewhere has the same id.
        name = f"{run.root.name} ({number})" if run.root.name in drawn else run.root.name
        drawn[name] = curves(run.metrics)
    write_atomic(target, overlay_page(lineup.comparisons[0].stage, drawn, words))


def _apart(comparison: Comparison) -> tuple[str, str]:
    """The last step with equal bits in every decisive metric, and the largest relative difference after it."""
    steps = [parting.first_step for parting in comparison.partings if parting.first_step is not None]
    if not steps:
        return "the end", "none"
    return f"step {min(steps) - 1}", f"{max(parting.largest_relative for parting in comparison.partings):.2g}"


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _CELL else f"{text[:12]}…{text[-6:]}"

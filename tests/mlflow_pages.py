"""What a person finds on MLflow's own pages, read from them in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from browser import Page
from lockstep.tracking.spool import curve
from lockstep.tracking.ui import Server, comparison_page

Curve = Sequence[tuple[float, float]]


def look_at_comparison(page: Page, server: Server, runs: Sequence[Any], parameter: str, values: set[str]) -> None:
    """Opens the comparison of two MLflow runs; asserts that it names both and shows both values of a parameter."""
    page.open(server.url + comparison_page([run.info.run_id for run in runs], [runs[0].info.experiment_id]))
    page.wait_for(f"document.body.innerText.includes('{parameter}')")
    text = page.evaluate("document.body.innerText")
    rows = re.findall(rf"{re.escape(parameter)}\s+(\S+)\s+(\S+)", text)
    assert values in [set(row) for row in rows], text
    assert all(run.info.run_name in text for run in runs)


def look_at_charts(page: Page, server: Server, experiment: str, roots: Sequence[Path]) -> None:
    """Opens an experiment's charts; asserts that the loss curve of every run directory is drawn."""
    page.open(f"{server.experiment_pages()[experiment]}&compareRunsMode=CHART")
    for root in roots:
        recorded = curve(root / "metrics.jsonl", "loss")
        assert any(_shows(line, recorded) for line in _drawn_lines(page, at_least=6)), root


def _drawn_lines(page: Page, at_least: int) -> list[Curve]:
    """The vertices of every line in the page's charts, in pixels; waits until there are enough lines."""
    lines = "[...document.querySelectorAll('path.js-line')].map(line => line.getAttribute('d'))"
    page.wait_for(f"{lines}.length >= {at_least}")
    paths: list[str] = page.evaluate(lines)
    return [[(float(x), float(y)) for x, y in (p.split(",") for p in path[1:].split("L"))] for path in paths]


def _shows(line: Curve, recorded: Curve) -> bool:
    """True when the line is the recorded curve, stretched and shifted; Plotly leaves out points on a straight way."""
    to_step, to_value = (_from_pixels(line, recorded, axis) for axis in (0, 1))
    values = dict(recorded)
    spread = abs(recorded[0][1] - recorded[-1][1])
    return len(line) > 10 and all(
        abs(to_value(y) - values.get(round(to_step(x)), float("inf"))) < 0.01 * spread for x, y in line
    )


def _from_pixels(line: Curve, recorded: Curve, axis: int) -> Callable[[float], float]:
    """The scale of one axis, if the line's ends are the recorded ends."""
    (low, high), (first, last) = ([ends[0][axis], ends[-1][axis]] for ends in (line, recorded))
    return lambda pixel: first + (last - first) * (pixel - low) / ((high - low) or 1)

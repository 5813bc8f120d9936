"""Two variants of one experiment, seen as a person sees them: MLflow's own pages in a browser."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from browser import Page, browser, needs_chromium
from lockstep.params.run import RunParams
from lockstep.tracking.mlflow_client import connect, tracking_address
from lockstep.tracking.spool import curve
from lockstep.tracking.tracker import Tracker
from lockstep.tracking.ui import comparison_page, running
from tracked_runs import SFT_PARAMS, begin_attempt, end_attempt, new_run, train

Curve = Sequence[tuple[float, float]]
MEMORY_LIMIT_BYTES = 700e6


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots are kept: the folder that CI collects, if it names one."""
    return Path(os.environ.get("LOCKSTEP_PICTURES", tmp_path))


def two_variants(runs: Path) -> list[Path]:
    """Runs of two learning rates, one faster than the other, recorded by the tracker of `lockstep run`."""
    roots = []
    for learning_rate, slope in ((1e-4, 0.05), (3e-4, 0.09)):
        params = copy.deepcopy(SFT_PARAMS)
        params["sft"]["learning_rate"] = learning_rate  # type: ignore[index]
        root = new_run(runs, params=params)
        with Tracker(root, RunParams(), runs):
            train(root, begin_attempt(root), range(1, 41), slope)
            end_attempt(root)
        roots.append(root)
    return roots


@needs_chromium
def test_the_comparison_of_two_variants_shows_what_differs_and_both_curves(tmp_path: Path, pictures: Path) -> None:
    runs = tmp_path / "runs"
    roots = two_variants(runs)
    client = connect(tracking_address(runs, None))
    experiment = client.get_experiment_by_name("lockstep/sft").experiment_id
    found = client.search_runs([experiment])
    with running(runs) as server, browser() as page:
        processes = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        assert sum(process.memory_info().rss for process in processes) < MEMORY_LIMIT_BYTES

        page.open(server.url + comparison_page([run.info.run_id for run in found], [experiment]))
        page.wait_for("document.body.innerText.includes('sft.learning_rate')")
        text = page.evaluate("document.body.innerText")
        assert re.search(r"sft\.learning_rate\s+(0\.0003\s+0\.0001|0\.0001\s+0\.0003)", text), text
        assert all(run.info.run_name in text for run in found)
        page.screenshot(pictures / "comparison.png")

        page.open(f"{server.experiment_pages()['lockstep/sft']}&compareRunsMode=CHART")
        for root in roots:
            recorded = curve(root / "metrics.jsonl", "loss")
            assert any(shows(line, recorded) for line in drawn_lines(page, at_least=6)), root
        page.screenshot(pictures / "charts.png")
    assert not any(process.is_running() for process in processes)


def drawn_lines(page: Page, at_least: int) -> list[Curve]:
    """The vertices of every line in the page's charts, in pixels; waits until there are enough lines."""
    lines = "[...document.querySelectorAll('path.js-line')].map(line => line.getAttribute('d'))"
    page.wait_for(f"{lines}.length >= {at_least}")
    paths: list[str] = page.evaluate(lines)
    return [[(float(x), float(y)) for x, y in (p.split(",") for p in path[1:].split("L"))] for path in paths]


def shows(line: Curve, recorded: Curve) -> bool:
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

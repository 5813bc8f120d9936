"""Two variants of one experiment, seen as a person sees them: MLflow's own pages in a browser."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import psutil
import pytest

from browser import browser, needs_chromium
from lockstep.params.run import RunParams
from lockstep.tracking.mlflow_client import connect, tracking_address
from lockstep.tracking.tracker import Tracker
from lockstep.tracking.ui import running
from mlflow_pages import look_at_charts, look_at_comparison
from tracked_runs import SFT_PARAMS, begin_attempt, end_attempt, new_run, train

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

        look_at_comparison(page, server, found, "sft.learning_rate", {"0.0001", "0.0003"})
        page.screenshot(pictures / "comparison.png")
        look_at_charts(page, server, "lockstep/sft", roots)
        page.screenshot(pictures / "charts.png")
    assert not any(process.is_running() for process in processes)

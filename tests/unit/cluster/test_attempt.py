"""An attempt's end as its ranks left it, also when nobody was left to write it down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.cluster.attempt import Problem, close_lost, end, of_same_job, processes_per_node
from lockstep.cluster.verdict import Limits
from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import write_json
from lockstep.runs.directory import RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "sft" / "abc")
    run.control.mkdir(parents=True)
    attempt = {"attempt": 1, "reason": "running", "checkpoint_before": 0, "slurm": {"job_id": "7"}}
    run.write({"run_id": "abc", "stage": "sft", "status": "running", "attempts": [attempt], "result": {}})
    return run


def _rank(directory: RunDirectory, rank: int, code: int, message: str = "x") -> None:
    path = directory.control / f"status.1.{rank}.json"
    write_json(path, {"exit_code": code, "message": message, "rank": rank})


def _checkpoint(directory: RunDirectory, step: int) -> None:
    (directory.checkpoints / f"step-{step}").mkdir(parents=True)


def _newest(directory: RunDirectory) -> dict[str, Any]:
    record = directory.read()
    assert record is not None
    newest: dict[str, Any] = record["attempts"][-1]
    return newest


def test_ranks_that_saved_on_a_signal_go_back_into_the_queue(directory: RunDirectory) -> None:
    _rank(directory, 0, 85)
    _rank(directory, 1, 85)
    _checkpoint(directory, 8)
    verdict = end(directory, 0, "USR2", "unknown", Problem(), Limits())
    assert (verdict.action, verdict.exit_code) == ("requeue", 85)
    assert (_newest(directory)["cause"], _newest(directory)["checkpoint_after"]) == ("saved on a signal", 8)


def test_srun_turning_a_code_into_another_changes_no_verdict(directory: RunDirectory) -> None:
    _rank(directory, 1, 93, "the base model is another one")
    verdict = end(directory, 143, "none", "unknown", Problem(), Limits())
    assert (verdict.action, verdict.exit_code) == ("stop", 93)
    assert verdict.why == "rank 1: the base model is another one"


def test_launchers_that_ended_well_and_left_nothing_did_nothing(directory: RunDirectory) -> None:
    assert end(directory, 0, "none", "unknown", Problem(), Limits()).action == "again"
    assert _newest(directory)["cause"] == "failed"


def test_a_signal_before_the_workers_started_goes_back_into_the_queue(directory: RunDirectory) -> None:
    directory.stop_file(1).touch()
    assert end(directory, 85, "USR2", "unknown", Problem(), Limits()).action == "requeue"
    assert not directory.stop_file(1).exists()


def test_a_preflight_that_refuses_is_final_and_a_bad_node_is_not(directory: RunDirectory) -> None:
    refused = end(directory, 0, "none", "unknown", Problem("refuse", "n1: another image"), Limits())
    assert (refused.action, refused.exit_code, refused.why) == ("stop", 93, "n1: another image")
    assert end(directory, 0, "none", "unknown", Problem("bad", "n1: no GPU"), Limits()).action == "requeue"


@pytest.mark.parametrize(
    ("ranks", "outputs", "cause", "status"),
    [
        ([], False, "lost", "failed"),
        ([85, 85], False, "saved on a signal", "stopped"),
        ([1], False, "lost", "failed"),
        ([], True, "done", "complete"),
    ],
)
def test_an_attempt_that_nobody_closed(
    directory: RunDirectory, ranks: list[int], outputs: bool, cause: str, status: str
) -> None:
    for rank, code in enumerate(ranks):
        _rank(directory, rank, code)
    if outputs:
        write_json(directory.outputs / "result.json", {"weights_sha256": "f00"})
    (directory.stop_file(1)).touch()
    record = directory.read()
    assert record is not None
    assert close_lost(directory, record)
    assert (_newest(directory)["cause"], record["status"]) == (cause, status)
    assert not directory.stop_file(1).exists()
    assert not close_lost(directory, record)


def test_budgets_are_those_of_one_submission() -> None:
    record = {"attempts": [{"slurm": {}}, {"slurm": {"job_id": "6"}}, {"slurm": {"job_id": "7"}}]}
    assert of_same_job(record) == record["attempts"][2:]


def test_processes_are_spread_evenly_or_not_at_all() -> None:
    assert processes_per_node(16, 2) == 8
    with pytest.raises(UsageError, match="evenly over 3 nodes"):
        processes_per_node(16, 3)

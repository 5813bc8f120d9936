"""An attempt's verdict is its workers' own, whatever the launcher in between made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.foundation.files import write_json
from lockstep.launch import attempts
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.spool import Spool


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def _record() -> dict[str, Any]:
    return {"attempts": [], "status": "created", "result": {}}


@pytest.mark.parametrize(
    ("launcher", "ranks", "code", "status"),
    [
        (0, {}, 0, "complete"),
        (0, {0: 85, 1: 85}, 85, "stopped"),
        (1, {0: 85}, 85, "stopped"),
        (1, {0: 85, 1: 1}, 1, "failed"),
        (1, {0: 2}, 2, "failed"),
        (93, {}, 93, "failed"),
        (-9, {}, 1, "failed"),
    ],
)
def test_the_verdict(directory: RunDirectory, launcher: int, ranks: dict[int, int], code: int, status: str) -> None:
    write_json(directory.outputs / "result.json", {"weights_sha256": "abc"})
    record = _record()
    number = attempts.begin(directory, record, {"engine": "host"})
    for rank, value in ranks.items():
        message = {"exit_code": value, "message": "why it ended", "rank": rank}
        write_json(directory.control / f"status.{number}.{rank}.json", message)
    assert attempts.end(directory, record, launcher) == code
    assert directory.read() == record
    assert record["status"] == status
    assert bool(record["result"]) is (status == "complete")


def test_attempts_are_counted_and_keep_what_the_workers_said(directory: RunDirectory) -> None:
    record = _record()
    assert attempts.begin(directory, record, {}) == 1
    attempts.end(directory, record, -9)
    assert record["attempts"][0]["reason"] == "killed by signal 9"
    assert attempts.begin(directory, record, {}) == 2
    write_json(directory.outcome_file(2), {"reason": "stopped", "start_step": 3, "end_step": 7})
    write_json(directory.control / "status.2.0.json", {"exit_code": 85, "message": "saved", "rank": 0})
    assert attempts.end(directory, record, 0) == 85
    assert record["attempts"][1]["start_step"] == 3
    assert record["attempts"][1]["end_step"] == 7


def test_a_killed_attempt_tells_its_steps_from_the_spool(directory: RunDirectory) -> None:
    record = _record()
    attempts.begin(directory, record, {})
    with Spool(directory.metrics, attempt=1) as spool:
        for step in (1, 2, 3):
            spool.append(step, {"loss": 1.0})
    assert attempts.begin(directory, record, {}) == 2
    with Spool(directory.metrics, attempt=2) as spool:
        spool.append(3, {"loss": 1.0})
    attempts.end(directory, record, -9)
    orphan, killed = record["attempts"]
    assert (orphan["start_step"], orphan["end_step"], orphan["reason"]) == (0, 3, "killed together with its launcher")
    assert (killed["start_step"], killed["end_step"], killed["reason"]) == (2, 3, "killed by signal 9")

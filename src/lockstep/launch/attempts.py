"""Attempts in run.json: each start of the workers is one, and says from where to where it came and what ended it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from lockstep.foundation.errors import EXIT_FAILED, EXIT_OK, EXIT_SAVED
from lockstep.foundation.files import read_json, sha256_tree
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.spool import read_points

_STATUS_BY_CODE = {EXIT_OK: "complete", EXIT_SAVED: "stopped"}


def now() -> str:
    """This moment in UTC, ISO 8601, seconds."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def begin(directory: RunDirectory, record: dict[str, Any], facts: dict[str, Any]) -> int:
    """Appends an open attempt to the record and returns its number, counted from 1."""
    _close_orphans(directory, record)
    number = len(record["attempts"]) + 1
    record["attempts"].append({"attempt": number, "started": now(), "reason": "running", **facts})
    record["status"] = "running"
    directory.write(record)
    return number


def end(directory: RunDirectory, record: dict[str, Any], launcher_code: int) -> int:
    """Closes the newest attempt from what the workers left behind and returns the exit code of the command."""
    attempt = record["attempts"][-1]
    statuses = rank_statuses(directory, attempt["attempt"])
    code = _exit_code(launcher_code, statuses)
    outcome_file = directory.outcome_file(attempt["attempt"])
    outcome = read_json(outcome_file) if outcome_file.exists() else {}
    reason = outcome.pop("reason", None)
    attempt.update(_steps_seen(directory, attempt["attempt"]) | outcome)
    if code not in _STATUS_BY_CODE:
        reason = _failure(launcher_code, statuses)
    return close(directory, record, code, reason or _STATUS_BY_CODE[code])


def close(directory: RunDirectory, record: dict[str, Any], code: int, reason: str) -> int:
    """Closes the newest attempt with a known end, and the run with it; returns `code`."""
    record["attempts"][-1].update(ended=now(), exit_code=code, reason=reason)
    record["status"] = _STATUS_BY_CODE.get(code, "failed")
    if code == EXIT_OK:
        result = directory.outputs / "result.json"
        found = read_json(result) if result.exists() else {}
        record["result"] = {**found, "outputs_sha256": sha256_tree(directory.outputs)}
    directory.write(record)
    return code


def _close_orphans(directory: RunDirectory, record: dict[str, Any]) -> None:
    """Attempts that nobody closed: their launching parent was killed, too."""
    for attempt in record["attempts"]:
        if attempt["reason"] == "running":
            attempt.update(_steps_seen(directory, attempt["attempt"]), reason="killed together with its launcher")


def _steps_seen(directory: RunDirectory, number: int) -> dict[str, int]:
    """From where to where an attempt came, by the spool: all that is known of one that died without a word."""
    steps = [point.step for point in read_points(directory.metrics) if point.attempt == number]
    return {"start_step": min(steps) - 1, "end_step": max(steps)} if steps else {}


def rank_statuses(directory: RunDirectory, attempt: int) -> list[dict[str, Any]]:
    """What the ranks of one attempt left behind when they did not simply complete: exit code, message, rank."""
    return [read_json(path) for path in sorted(directory.control.glob(f"status.{attempt}.*.json"))]


def _exit_code(launcher_code: int, statuses: list[dict[str, Any]]) -> int:
    """The workers' own verdict where they left one; a crash of one rank outweighs the others' saved stops."""
    codes = {int(status["exit_code"]) for status in statuses}
    if failed := codes - {EXIT_SAVED}:
        return max(failed)
    if codes:
        return EXIT_SAVED
    return launcher_code if launcher_code >= 0 else EXIT_FAILED


def _failure(launcher_code: int, statuses: list[dict[str, Any]]) -> str:
    for status in statuses:
        if status["exit_code"] != EXIT_SAVED:
            return f"rank {status['rank']}: {status['message'].strip().splitlines()[-1]}"
    return f"killed by signal {-launcher_code}" if launcher_code < 0 else f"workers ended with code {launcher_code}"


def attempt_log(directory: RunDirectory, number: int) -> Path:
    """Where the output of one attempt is kept."""
    return directory.log / f"attempt-{number}.log"

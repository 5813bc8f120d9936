"""What follows from an attempt's end: done, again, back into the queue, or never again."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.cluster.verdict import Cause, Limits, cause_of, decide


def _attempt(cause: Cause, before: int = 0, after: int = 5, exit_code: int = 1) -> dict[str, Any]:
    return {
        "cause": str(cause),
        "checkpoint_before": before,
        "checkpoint_after": after,
        "exit_code": exit_code,
        "reason": "as it was",
    }


@pytest.mark.parametrize(
    ("code", "signal", "job_state", "kind", "cause"),
    [
        (0, "none", "unknown", "none", Cause.DONE),
        (0, "USR2", "unknown", "none", Cause.DONE),
        (85, "USR2", "unknown", "none", Cause.SAVED),
        (85, "none", "unknown", "none", Cause.STOPPED),
        (1, "none", "unknown", "none", Cause.FAILED),
        (1, "USR2", "unknown", "none", Cause.FAILED),
        (93, "none", "unknown", "none", Cause.REFUSED),
        (2, "none", "unknown", "none", Cause.REFUSED),
        (1, "TERM", "CANCELLED", "none", Cause.CANCELLED),
        (1, "TERM", "TIMEOUT", "none", Cause.TIME_LIMIT),
        (1, "TERM", "PREEMPTED", "none", Cause.PREEMPTED),
        (1, "TERM", "REQUEUED", "none", Cause.REQUEUED),
        (1, "TERM", "unknown", "none", Cause.CANCELLED),
        (85, "TERM", "unknown", "none", Cause.CANCELLED),
        (85, "TERM", "REQUEUED", "none", Cause.SAVED),
        (85, "TERM", "TIMEOUT", "none", Cause.SAVED),
        (85, "TERM", "CANCELLED", "none", Cause.CANCELLED),
        (1, "none", "unknown", "bad", Cause.BAD_NODE),
        (1, "none", "unknown", "unsure", Cause.FAILED),
        (1, "none", "unknown", "refuse", Cause.REFUSED),
    ],
)
def test_the_cause_of_an_end(code: int, signal: str, job_state: str, kind: str, cause: Cause) -> None:
    assert cause_of(code, signal, job_state, kind) is cause


@pytest.mark.parametrize(
    ("cause", "action", "exit_code"),
    [
        (Cause.DONE, "done", 0),
        (Cause.SAVED, "requeue", 85),
        (Cause.TIME_LIMIT, "requeue", 85),
        (Cause.PREEMPTED, "requeue", 85),
        (Cause.REQUEUED, "requeue", 85),
        (Cause.LOST, "requeue", 85),
        (Cause.BAD_NODE, "requeue", 85),
        (Cause.FAILED, "again", 1),
        (Cause.STOPPED, "stop", 85),
        (Cause.CANCELLED, "stop", 85),
    ],
)
def test_a_first_attempt(cause: Cause, action: str, exit_code: int) -> None:
    verdict = decide([_attempt(cause)], Limits())
    assert (verdict.action, verdict.exit_code) == (action, exit_code)


def test_a_lock_that_does_not_match_is_not_tried_again() -> None:
    verdict = decide([_attempt(Cause.REFUSED, exit_code=93)], Limits())
    assert (verdict.action, verdict.exit_code, verdict.why) == ("stop", 93, "as it was")


def test_preemptions_with_progress_may_go_on_for_ever() -> None:
    attempts = [_attempt(Cause.PREEMPTED, before=step, after=step + 1) for step in range(50)]
    assert decide(attempts, Limits()).action == "requeue"


@pytest.mark.parametrize("cause", [Cause.SAVED, Cause.LOST, Cause.TIME_LIMIT, Cause.FAILED])
def test_no_newer_checkpoint_in_three_attempts_is_the_end(cause: Cause) -> None:
    two = [_attempt(cause, before=5, after=5) for _ in range(2)]
    assert decide(two, Limits()).action != "stop"
    verdict = decide([*two, two[0]], Limits())
    assert (verdict.action, verdict.exit_code) == ("stop", 93)


def test_a_checkpoint_in_between_starts_the_count_again() -> None:
    idle, useful = _attempt(Cause.LOST, before=5, after=5), _attempt(Cause.LOST, before=5, after=9)
    assert decide([idle, idle, useful, idle, idle], Limits()).action == "requeue"


def test_failures_have_a_budget_even_with_progress() -> None:
    failures = [_attempt(Cause.FAILED, before=step, after=step + 1) for step in range(4)]
    assert decide(failures[:3], Limits(failed=4)).action == "again"
    verdict = decide(failures, Limits(failed=4))
    assert (verdict.action, verdict.exit_code) == ("stop", 1)


def test_bad_nodes_have_a_budget_of_their_own_and_are_no_lack_of_progress() -> None:
    bad = [_attempt(Cause.BAD_NODE, before=0, after=0) for _ in range(6)]
    assert decide(bad[:5], Limits(bad_node=6)).action == "requeue"
    assert decide(bad, Limits(bad_node=6)).action == "stop"

"""What happens after an attempt on the cluster: done, again in this allocation, back into the queue, or never again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lockstep.foundation.errors import EXIT_DO_NOT_RETRY, EXIT_FAILED, EXIT_OK, EXIT_SAVED, EXIT_USAGE


class Cause(StrEnum):
    """Why an attempt ended."""

    DONE = "done"
    SAVED = "saved on a signal"
    """Slurm announced the time limit or a preemption, and the state was saved."""
    TIME_LIMIT = "time limit"
    """The limit came before the state was saved."""
    PREEMPTED = "preempted"
    """The grace period ended before the state was saved."""
    REQUEUED = "requeued"
    """Somebody put the job back into the queue, and it was killed for that at once."""
    LOST = "lost"
    """Nobody was left to say: a node died, or everything was killed at once."""
    FAILED = "failed"
    BAD_NODE = "bad node"
    """The preflight found a node that cannot do the work."""
    STOPPED = "stopped by request"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    """Wrong parameters, or a lock that does not match: another attempt cannot cure it."""


@dataclass(frozen=True)
class Limits:
    """Attempts that one run may spend, by cause; a site may set others (slurm/site.env)."""

    failed: int = 4
    bad_node: int = 6
    without_progress: int = 3
    """Attempts in a row after which there is no newer checkpoint; time limits, preemptions and lost nodes included."""


@dataclass(frozen=True)
class Verdict:
    """What the batch script does now."""

    action: str
    """`done`, `again` (a new attempt in this allocation), `requeue`, or `stop`."""
    exit_code: int
    why: str


_ENDED = {Cause.DONE: EXIT_OK, Cause.STOPPED: EXIT_SAVED, Cause.CANCELLED: EXIT_SAVED}
_NOT_STARTED = (Cause.BAD_NODE,)


def decide(attempts: Sequence[Mapping[str, Any]], limits: Limits) -> Verdict:
    """The verdict on the newest of closed attempts; each has `cause`, `checkpoint_before`, `checkpoint_after`."""
    newest = attempts[-1]
    cause = Cause(newest["cause"])
    if cause in _ENDED:
        return Verdict("done" if cause is Cause.DONE else "stop", _ENDED[cause], str(cause))
    if cause is Cause.REFUSED:
        return Verdict("stop", newest["exit_code"], newest["reason"])
    if spent := _spent(attempts, cause, limits):
        return spent
    if cause is Cause.FAILED:
        return Verdict("again", EXIT_FAILED, newest["reason"])
    return Verdict("requeue", EXIT_SAVED, str(cause))


def _spent(attempts: Sequence[Mapping[str, Any]], cause: Cause, limits: Limits) -> Verdict | None:
    if stuck(attempts, limits.without_progress):
        why = f"no newer checkpoint after {limits.without_progress} attempts"
        return Verdict("stop", EXIT_DO_NOT_RETRY, why)
    allowed = {Cause.FAILED: limits.failed, Cause.BAD_NODE: limits.bad_node}.get(cause)
    num_spent = sum(attempt.get("cause") == cause for attempt in attempts)
    if allowed is not None and num_spent >= allowed:
        return Verdict("stop", EXIT_FAILED, f"{num_spent} attempts ended by '{cause}'")
    return None


def stuck(attempts: Sequence[Mapping[str, Any]], num_allowed: int) -> bool:
    """True when the last `num_allowed` attempts that started workers on the cluster left no newer checkpoint."""
    tried = [attempt for attempt in attempts if attempt.get("cause") not in (None, *_NOT_STARTED)]
    last = tried[-num_allowed:]
    return len(last) == num_allowed and all(a["checkpoint_after"] == a["checkpoint_before"] for a in last)


def cause_of(code: int, signal: str, job_state: str, kind: str) -> Cause:
    """The cause of an attempt's end.

    `code` is the workers' verdict (attempts.end), `signal` what the batch shell received (`none`, `USR2`, `TERM`),
    `job_state` why Slurm ends the job (at SIGTERM), `kind` the preflight's (`none`, `bad`, `unsure`, `refuse`).
    """
    if kind == "refuse" or code in (EXIT_USAGE, EXIT_DO_NOT_RETRY):
        return Cause.REFUSED
    if kind != "none":
        return Cause.BAD_NODE if kind == "bad" else Cause.FAILED
    if code == EXIT_OK:
        return Cause.DONE
    if signal == "TERM" and (code != EXIT_SAVED or job_state in ("CANCELLED", "unknown")):
        # Nothing is put back into the queue unless Slurm said that it was not cancelled.
        return _BY_JOB_STATE.get(job_state, Cause.CANCELLED)
    if code == EXIT_SAVED:
        return Cause.STOPPED if signal == "none" else Cause.SAVED
    return Cause.FAILED


_BY_JOB_STATE = {
    "CANCELLED": Cause.CANCELLED,
    "REQUEUED": Cause.REQUEUED,
    "TIMEOUT": Cause.TIME_LIMIT,
    "PREEMPTED": Cause.PREEMPTED,
    "NODE_FAIL": Cause.LOST,
}

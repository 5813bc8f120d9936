"""The few questions and orders that Slurm gets from Python, each answered the same with or without accounting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.cluster.host import host_command
from lockstep.foundation.errors import LockstepError, UsageError

LIVE = frozenset(
    {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING"}
)
_SUBMITTED = re.compile(r"^(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job. `state` is its word (`PENDING`, …), `unknown` where nothing remembers the job."""

    state: str
    reason: str = ""
    """Why a pending job waits."""
    source: str = "nobody"
    """Who said so: squeue, scontrol or sacct."""

    @property
    def is_live(self) -> bool:
        """True while it may still write."""
        return self.state in LIVE


def has_slurm() -> bool:
    """True where this host has Slurm's commands."""
    return host_command(["sbatch", "--version"]).code == 0


def submit(words: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> str:
    """`sbatch --parsable WORDS` and the new job's id. Raises LockstepError with Slurm's own words."""
    answer = host_command(["sbatch", "--parsable", *words], cwd, environment)
    if answer.code == 127:
        raise UsageError("There is no sbatch here; submit from a login node of the cluster.")
    found = _SUBMITTED.search(answer.out)
    if answer.code != 0 or not found:
        raise LockstepError(f"sbatch refused the job:\n{answer.err.strip() or answer.out.strip()}")
    return found[1]


def cancel(job_id: str) -> None:
    """`scancel`; a job that is gone already is no error. Raises LockstepError with Slurm's own words."""
    answer = host_command(["scancel", job_id])
    if answer.code != 0 and "Invalid job id" not in answer.err:
        raise LockstepError(f"scancel {job_id} failed:\n{answer.err.strip()}")


def job_states(job_ids: Sequence[str]) -> dict[str, JobState]:
    """The state of each job: from squeue, for those that left it from scontrol, for older ones from sacct.

    Raises LockstepError when the controller does not answer.
    """
    if not job_ids:
        return {}
    queued = _queue()
    return {job_id: queued.get(job_id) or _controller(job_id) or _accounting(job_id) for job_id in job_ids}


def _queue() -> dict[str, JobState]:
    """Every job in the queue, by its own id and, for an array task, by ARRAY_TASK, too.

    Raises LockstepError when Slurm is there and does not answer: a job must not look gone for that.
    """
    answer = host_command(["squeue", "--me", "--noheader", "--array", "--format=%A|%i|%T|%r"])
    if answer.code not in (0, 127):
        raise LockstepError(f"squeue does not answer, so nothing can be said of any job:\n{answer.err.strip()}")
    found: dict[str, JobState] = {}
    for line in answer.out.splitlines():
        own_id, shown_id, state, reason = line.strip().split("|", 3)
        found[own_id] = found[shown_id] = JobState(state, "" if reason == "None" else reason, "squeue")
    return found


def _controller(job_id: str) -> JobState | None:
    answer = host_command(["scontrol", "--oneliner", "show", "job", job_id])
    state = re.search(r"\bJobState=(\w+)", answer.out)
    reason = re.search(r"\bReason=(\S+)", answer.out)
    return JobState(state[1], reason[1] if reason and reason[1] != "None" else "", "scontrol") if state else None


def _accounting(job_id: str) -> JobState:
    """The last word; without accounting storage nobody remembers a job after some minutes (MinJobAge)."""
    answer = host_command(["sacct", "--noheader", "--parsable2", "--allocations", "--format=State", "--jobs", job_id])
    state = answer.out.split("\n", 1)[0].split(" ", 1)[0].strip()
    return JobState(state, "", "sacct") if answer.code == 0 and state else JobState("unknown")

"""An attempt on the cluster, opened and closed from the batch script, inside the image, on the first node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.checkpoints.catalog import list_steps
from lockstep.cluster.intent import Intent
from lockstep.cluster.shell import assignments, environment_file
from lockstep.cluster.verdict import Cause, Limits, Verdict, cause_of, decide
from lockstep.engines.base import Bind, LaunchRequest
from lockstep.engines.binds import resolved_binds
from lockstep.engines.inside import mount_option
from lockstep.engines.variables import cache_folders, stage_environment
from lockstep.foundation.errors import EXIT_DO_NOT_RETRY, EXIT_FAILED, EXIT_OK, DoNotRetryError, UsageError
from lockstep.foundation.files import write_atomic
from lockstep.launch import attempts
from lockstep.launch.environment import worker_variables
from lockstep.launch.lock import exclusive
from lockstep.launch.prepare import StageRun, hand_over
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.provenance import hardware


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave the job, as its batch script sees it."""

    slurm: Mapping[str, str]
    """Ids of the job, as `tracking.provenance.slurm` names them."""
    engine: str
    image: Path
    image_sha256: str
    """Of the locked image; empty with the host engine."""
    num_nodes: int
    cpus_per_task: int
    live_jobs: frozenset[str]
    """Ids of the user's jobs that are queued or running."""


@dataclass(frozen=True)
class Problem:
    """What the preflight found: `kind` is `none`, `bad` (nodes), `unsure`, or `refuse` (a lock does not match)."""

    kind: str = "none"
    text: str = ""


def begin(intent: Intent, allocation: Allocation, limits: Limits) -> Path | None:
    """Opens the next attempt and returns the file that the batch scripts source; None when the run is complete.

    Raises DoNotRetryError when another job has the run, a lock does not match or attempts made no progress, UsageError
    when the allocation does not fit the run, LockstepError when a process on a login node has the run.
    """
    run = intent.resolve()
    num_local = processes_per_node(run.num_processes, allocation.num_nodes)
    with exclusive(run.directory):
        record = intent.record(run)
        _refuse_if_taken(record, allocation)
        close_lost(run.directory, record)
        if record["status"] == "complete":
            return None
        _refuse_if_spent(record, allocation, limits)
        _clear_control(run.directory)
        number = attempts.begin(run.directory, record, _facts(run, allocation, num_local))
        hand_over(run, number)
        return _write_for_scripts(run, intent, allocation, number, num_local)


def processes_per_node(num_processes: int, num_nodes: int) -> int:
    """Workers on each node. Raises UsageError where they cannot be spread evenly."""
    if num_processes % num_nodes:
        raise UsageError(
            f"{num_processes} process(es) cannot be spread evenly over {num_nodes} nodes.\n"
            "Ask for a number of nodes that divides num_processes in params.yaml (sbatch --nodes, submit --nodes)."
        )
    return num_processes // num_nodes


def end(directory: RunDirectory, code: int, signal: str, job_state: str, problem: Problem, limits: Limits) -> Verdict:
    """Closes the open attempt and says what the batch script does next.

    `code` is what the launchers ended with, `signal` and `job_state` what the batch shell saw (verdict.cause_of).
    """
    record = directory.read()
    assert record is not None
    number = record["attempts"][-1]["attempt"]
    directory.stop_file(number).unlink(missing_ok=True)
    if problem.kind == "none":
        # Outputs are complete or absent; launchers that ended well and left neither them nor a word did nothing.
        believed = code != EXIT_OK or directory.outputs.exists() or attempts.rank_statuses(directory, number)
        code = attempts.end(directory, record, code if believed else EXIT_FAILED)
    else:
        code = EXIT_DO_NOT_RETRY if problem.kind == "refuse" else EXIT_FAILED
        attempts.close(directory, record, code, problem.text)
    _note_end(directory, record, cause_of(code, signal, job_state, problem.kind))
    return decide(of_same_job(record), limits)


def close_lost(directory: RunDirectory, record: dict[str, Any]) -> bool:
    """Closes an attempt that nobody was left to close, from what its workers wrote; True when there was one."""
    if not record["attempts"] or "ended" in record["attempts"][-1]:
        return False
    number = record["attempts"][-1]["attempt"]
    statuses = attempts.rank_statuses(directory, number)
    if statuses or (directory.outputs / "result.json").exists():
        code = attempts.end(directory, record, EXIT_OK)
        _note_end(directory, record, cause_of(code, "TERM", "NODE_FAIL", "none"))
    else:
        attempts.close(directory, record, EXIT_FAILED, "lost: its node died, or all was killed at once")
        _note_end(directory, record, Cause.LOST)
    directory.stop_file(number).unlink(missing_ok=True)
    return True


def of_same_job(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The attempts of the newest attempt's job: a new submission starts with fresh budgets."""
    job = record["attempts"][-1]["slurm"].get("job_id")
    return [attempt for attempt in record["attempts"] if attempt.get("slurm", {}).get("job_id") == job]


def newest_step(directory: RunDirectory) -> int:
    """The step of the newest checkpoint, 0 without one."""
    return max(list_steps(directory.checkpoints), default=0)


def _note_end(directory: RunDirectory, record: dict[str, Any], cause: Cause) -> None:
    record["attempts"][-1].update(cause=str(cause), checkpoint_after=newest_step(directory))
    directory.write(record)


def _refuse_if_taken(record: Mapping[str, Any], allocation: Allocation) -> None:
    if not record["attempts"] or "ended" in record["attempts"][-1]:
        return
    holder = record["attempts"][-1].get("slurm", {}).get("job_id")
    if holder != allocation.slurm["job_id"] and holder in allocation.live_jobs:
        raise DoNotRetryError(
            f"Run {record['run_id']} is going on already, as Slurm job {holder}; this job does nothing."
        )


def _refuse_if_spent(record: Mapping[str, Any], allocation: Allocation, limits: Limits) -> None:
    if not record["attempts"] or record["attempts"][-1].get("slurm", {}).get("job_id") != allocation.slurm["job_id"]:
        return
    verdict = decide(of_same_job(record), limits)
    if verdict.action == "stop":
        raise DoNotRetryError(
            f"Run {record['run_id']} is not started again: {verdict.why}. See its logs; when the cause is mended, "
            f"submit it again."
        )


def _clear_control(directory: RunDirectory) -> None:
    """Removes stop requests of earlier attempts; one may have come when nobody was left to act on it."""
    for stale in directory.control.glob("*stop.*"):
        stale.unlink(missing_ok=True)


def _facts(run: StageRun, allocation: Allocation, num_local: int) -> dict[str, Any]:
    return {
        "engine": allocation.engine,
        "num_processes": run.num_processes,
        "num_nodes": allocation.num_nodes,
        "threads_per_process": _threads(allocation, num_local),
        "hardware": hardware()["class"],
        "slurm": dict(allocation.slurm),
        "checkpoint_before": newest_step(run.directory),
        "options": {name: value for name, value in run.options.for_workers().items() if value is not None},
    }


def _threads(allocation: Allocation, num_local: int) -> int:
    return max(1, allocation.cpus_per_task // num_local)


def _write_for_scripts(run: StageRun, intent: Intent, allocation: Allocation, number: int, num_local: int) -> Path:
    """The attempt as bash needs it, and the part of the workers' environment that is the same on every node."""
    scratch = run.directory.scratch
    for folder in (*cache_folders(scratch), run.directory.log):
        folder.mkdir(parents=True, exist_ok=True)
    flavour = run.identity.environment["flavour"]
    request = LaunchRequest(
        argv=(),
        project=run.project,
        workdir=run.project,
        scratch=scratch,
        attempt_name="",
        flavour=flavour,
        binds=(
            Bind(run.checkout),
            Bind(run.runs, writable=True),
            *(Bind(path) for path in sorted(set(run.inputs.paths.values()))),
        ),
        environment=worker_variables(_threads(allocation, num_local)),
    )
    write_atomic(run.directory.control / f"environment.{number}", environment_file(stage_environment(request, {})))
    path = run.directory.control / f"attempt.{number}.sh"
    values: dict[str, str | int | list[str]] = {
        "run_dir": str(run.directory.root),
        "attempt": number,
        "checkout": str(intent.checkout),
        "source": str(intent.source),
        "runs": str(intent.runs),
        "engine": allocation.engine,
        "image": str(allocation.image),
        "image_sha256": allocation.image_sha256,
        "flavour": flavour,
        "num_gpus": num_local if flavour == "cuda" else 0,
        "mounts": [mount_option(b.path, b.path, "" if b.writable else "ro") for b in resolved_binds(request)],
    }
    write_atomic(path, assignments(values))
    return path

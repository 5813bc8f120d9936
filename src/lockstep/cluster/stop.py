"""`lockstep stop` for a submitted run: a running job saves first, one that waits in the queue is taken out of it."""

from __future__ import annotations

from pathlib import Path

from lockstep.cluster.intent import Intent, all_intents
from lockstep.cluster.slurm import JobState, cancel, job_states
from lockstep.foundation.errors import UsageError
from lockstep.launch.places import runs_root
from lockstep.records.find import find_run
from lockstep.records.stop import request_stop
from lockstep.runs.directory import RunDirectory


def stop(project: Path, name: str) -> str:
    """Stops what is called `name` and returns what to tell the person.

    Raises UsageError for a name that is none, and for a run that is not going on.
    """
    runs = runs_root(project)
    found = live_job(runs, name)
    run = found[0].run if found else find_run(project, name).root
    if run is not None and found is None:
        found = live_job(runs, run.name)
    if found and (said := take_out_of_queue(*found)):
        return said
    if run is None:
        raise UsageError(f"Job {name} has started and its run is not known yet; ask again in a minute.")
    return request_stop(RunDirectory(run))


def live_job(runs: Path, name: str) -> tuple[Intent, JobState] | None:
    """The newest submission called `name` (a job's id, or a run's directory name) whose job is not over."""
    wanted = [
        intent
        for intent in reversed(all_intents(runs))
        if intent.job_id and name in (intent.job_id, intent.run.name if intent.run else None)
    ]
    states = job_states([str(intent.job_id) for intent in wanted])
    return next(((intent, states[str(intent.job_id)]) for intent in wanted if states[str(intent.job_id)].is_live), None)


def take_out_of_queue(intent: Intent, state: JobState) -> str | None:
    """Cancels a job that waits, and says so; None when it runs, and the stop file is the way."""
    if state.state != "PENDING":
        return None
    cancel(str(intent.job_id))
    if intent.run is not None:
        directory = RunDirectory(intent.run)
        record = directory.read()
        if record and record["status"] in ("submitted", "running"):
            directory.write({**record, "status": "stopped" if record["attempts"] else "created"})
    return f"job {intent.job_id} ({intent.stage}) was taken out of the queue. ./lockstep submit {intent.stage} goes on."

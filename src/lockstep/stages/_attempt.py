"""What the stages that train share: the checkpoints of an attempt, and the one to go on from."""

from __future__ import annotations

from pathlib import Path

from lockstep.checkpoints.store import CheckpointStore, Found, Retention
from lockstep.foundation.errors import UsageError
from lockstep.runs.job import Job


def open_store(job: Job, *, base_sha256: str | None) -> CheckpointStore:
    """This run's checkpoints as the parameters want them kept. Collective."""
    run = job.params.run
    return CheckpointStore(
        job.directory.checkpoints,
        run_id=job.run_id,
        retention=Retention(run.save_total_limit, run.save_every, "min" if run.keep_best else None),
        asynchronous=run.asynchronous_save,
        on_failure=run.on_save_failure,
        base_sha256=base_sha256,
    )


def checkpoint_to_go_on_from(job: Job, store: CheckpointStore) -> Found | None:
    """This run's own newest checkpoint, else the newest of the run named by --continue-from. Collective."""
    verify = job.params.run.verify
    found = store.newest(verify=verify)
    other = job.options.get("continue_from")
    if found is not None or other is None:
        return found
    folder = job.directory.root.parent / Path(other).name
    found = store.newest(verify=verify, root=folder / "checkpoints", run_id=folder.name)
    if found is None:
        raise UsageError(f"{folder} has no checkpoint to continue from.")
    return found

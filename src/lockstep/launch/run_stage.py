"""`lockstep run STAGE`: parameters → locks → run directory → workers → results. Reads from top to bottom."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from lockstep.engines.base import Bind, Engine, LaunchRequest
from lockstep.engines.select import select_engine
from lockstep.foundation.errors import EXIT_OK, EXIT_SAVED, LockstepError
from lockstep.foundation.files import write_json
from lockstep.launch import attempts
from lockstep.launch.command import worker_command
from lockstep.launch.environment import num_threads, worker_variables
from lockstep.launch.lock import LOCK, exclusive
from lockstep.launch.outputs import materialise
from lockstep.launch.plan import check_fits
from lockstep.launch.prepare import RunOptions, Sources, StageRun, hand_over, new_record, prepare_run
from lockstep.launch.supervise import Supervisor
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.provenance import hardware, slurm
from lockstep.tracking.tracker import Tracker


def run_stage(project: Path, stage: str, options: RunOptions) -> int:
    """Runs one stage to its end, or goes on where an earlier attempt stopped; returns the exit code."""
    run = prepare_run(Sources.of(project), stage, options)
    with exclusive(run.directory):
        code = execute(run)
        if code == EXIT_OK:
            materialise(project, stage, run.directory, run.spec.outputs)
        return code


def execute(run: StageRun) -> int:
    """Brings a run to its end, or on from where it stopped; returns the exit code. Its outputs stay in its folder.

    To be called under `exclusive(run.directory)`.
    """
    if os.environ.get("LOCKSTEP_FRESH") == "1":
        _set_aside(run.directory)
    record = run.directory.read()
    if record and record["status"] == "complete":
        print(f"{run.spec.name} {run.identity.run_id}: complete already.")
        return EXIT_OK
    _refuse_while_a_job_has_it(record)
    if run.options.plan and record is None and (planned := check_fits(run.project, run.experiment, run.spec.name)):
        write_json(run.directory.plan, planned)
    return _attempt(run, record or new_record(run))


def _refuse_while_a_job_has_it(record: dict[str, Any] | None) -> None:
    newest: dict[str, Any] = record["attempts"][-1] if record and record["attempts"] else {}
    if "num_nodes" in newest and "ended" not in newest:
        raise LockstepError(
            f"Slurm job {newest['slurm']['job_id']} has this very run.\n"
            "Watch it with ./lockstep status. If that job is gone, ./lockstep finish --all closes its attempt."
        )


def _attempt(run: StageRun, record: dict[str, Any]) -> int:
    engine = select_engine(run.project, run.options.engine, run.identity.environment["flavour"])
    request = launch_request(run, len(record["attempts"]) + 1)
    engine.prepare(request)
    number = attempts.begin(run.directory, record, _attempt_facts(run, engine, request))
    hand_over(run, number)
    print(f"{run.spec.name} {run.identity.run_id}: attempt {number} on {engine.name}, {run.num_processes} process(es)")
    sys.stdout.flush()
    with Tracker(run.directory.root, run.experiment.run, run.runs):
        code = attempts.end(run.directory, record, _supervise(run, engine, request, number))
    _say_how_it_ended(run, record, code)
    return code


def _supervise(run: StageRun, engine: Engine, request: LaunchRequest, number: int) -> int:
    supervisor = Supervisor(
        command=engine.command(request),
        environment=engine.process_environment(request),
        workdir=run.project,
        log_file=attempts.attempt_log(run.directory, number),
        stop_file=run.directory.stop_file(number),
        on_kill=lambda: engine.stop(request),
    )
    return supervisor.run()


def launch_request(run: StageRun, number: int) -> LaunchRequest:
    """What one attempt needs of an engine: the command, what it reads and writes, and its name."""
    timeout_s = run.experiment.run.rendezvous_timeout_s
    command = worker_command(run.spec.name, run.directory.root, number, run.num_processes, timeout_s)
    return LaunchRequest(
        argv=tuple(command),
        project=run.project,
        workdir=run.project,
        scratch=run.directory.scratch,
        attempt_name=f"lockstep-{run.spec.name}-{run.identity.run_id}-{number}",
        flavour=run.identity.environment["flavour"],
        binds=(Bind(run.runs, writable=True), *(Bind(path) for path in sorted(set(run.inputs.paths.values())))),
        environment=worker_variables(num_threads(run.num_processes)),
    )


def _attempt_facts(run: StageRun, engine: Engine, request: LaunchRequest) -> dict[str, Any]:
    return {
        **engine.facts(request),
        "num_processes": run.num_processes,
        "threads_per_process": num_threads(run.num_processes),
        "hardware": hardware()["class"],
        "slurm": slurm(),
        "options": {name: value for name, value in run.options.for_workers().items() if value is not None},
    }


def _set_aside(directory: RunDirectory) -> None:
    """LOCKSTEP_FRESH=1: an earlier execution keeps its folder under another name; the launcher's lock stays here."""
    if directory.read() is None:
        return
    number = 1
    while (target := directory.root.with_name(f"{directory.root.name}.earlier-{number}")).exists():
        number += 1
    (target / "control").mkdir(parents=True)
    for path in [*directory.root.iterdir(), *directory.control.iterdir()]:
        if path not in (directory.control, directory.control / LOCK):
            path.rename(target / path.relative_to(directory.root))


def _say_how_it_ended(run: StageRun, record: dict[str, Any], code: int) -> None:
    attempt = record["attempts"][-1]
    name = f"{run.spec.name} {run.identity.run_id}"
    if code == EXIT_OK:
        print(f"{name}: complete.")
    elif code == EXIT_SAVED:
        print(f"{name}: saved at step {attempt.get('end_step', '?')}; repeat the command to go on.")
    else:
        log = attempts.attempt_log(run.directory, attempt["attempt"])
        print(f"{name}: {attempt['reason']}\nThe whole output: {log}", file=sys.stderr)

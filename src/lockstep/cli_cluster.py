"""`lockstep submit`, `finish`, `push` and `pull`: verbs only, like cli.py, of which it is a part."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lockstep.foundation.errors import UsageError

AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def submit(
    stage: Annotated[str | None, typer.Argument(help="prepare, sft, reward, ppo or evaluate")] = None,
    everything: Annotated[bool, typer.Option("--all", help="every stage, each after those that it reads")] = False,
    nodes: Annotated[int, typer.Option(min=1, help="nodes over which the processes are spread")] = 1,
    after: Annotated[str | None, typer.Option(help="read this run's (or job's) result, and wait for it")] = None,
    grid: Annotated[Path | None, typer.Option(help="YAML of dotted names and lists: a job array, a run each")] = None,
    allow_dirty: Annotated[bool, typer.Option("--allow-dirty", help="keep the local changes with the run")] = False,
    elastic: Annotated[int | None, typer.Option(help="go on with this many processes, same global batch")] = None,
    continue_from: Annotated[str | None, typer.Option(help="start from another run's newest checkpoint")] = None,
    until_step: Annotated[int | None, typer.Option(help="save and stop after this step")] = None,
    no_plan: Annotated[bool, typer.Option("--no-plan", help="do not ask first whether it fits")] = False,
    sbatch: Annotated[
        list[str] | None, typer.Option(help="a further sbatch option, as in --sbatch=--time=2:00:00")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Record what shall run, then hand it to Slurm. The same run twice: says so and submits nothing."""
    from lockstep.cluster import submit as submission
    from lockstep.launch.places import project_root
    from lockstep.launch.prepare import RunOptions
    from lockstep.params.grid import Grid

    project = project_root()
    options = RunOptions(elastic=elastic, continue_from=continue_from, until_step=until_step)
    request = submission.Request(nodes, allow_dirty, options, not no_plan, tuple(sbatch or ()))
    if everything == (stage is not None):
        raise UsageError("Say which stage (./lockstep submit sft), or --all.")
    if everything or stage is None:
        answers = submission.submit_all(project, request)
    elif grid:
        answers = submission.submit_sweep(project, stage, request, Grid.read(grid))
    else:
        upstream = submission.find_upstream(project, after) if after else None
        answers = submission.submit_stage(project, stage, request, upstream)
    rows = [
        {name: str(value) if isinstance(value, Path) else value for name, value in asdict(a).items()} for a in answers
    ]
    print(json.dumps(rows, indent=2) if as_json else "\n".join(answer.text() for answer in answers))


def finish(
    name: Annotated[str | None, typer.Argument(help="a stage (its newest submitted result) or a run")] = None,
    everything: Annotated[bool, typer.Option("--all", help="every stage that was submitted")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring results home: check them, write results/ and dvc.lock, send metrics to MLflow, close dead runs."""
    from lockstep.cluster.finish import finish as bring_home
    from lockstep.cluster.finish import submitted_stages
    from lockstep.launch.places import project_root, runs_root
    from lockstep.params.stages import STAGES
    from lockstep.records.find import find_run

    project = project_root()
    if everything == (name is not None):
        raise UsageError("Say which stage or run (./lockstep finish sft), or --all.")
    if everything or name is None:
        finished = bring_home(project, submitted_stages(runs_root(project)))
    elif name in STAGES:
        finished = bring_home(project, [name])
    else:
        directory = find_run(project, name)
        finished = bring_home(project, [directory.root.parent.name], directory)
    print(json.dumps(asdict(finished), indent=2) if as_json else finished.text())


Remote = Annotated[str | None, typer.Option(help="a DVC remote; default: DVC's default one")]


def push(run_name: Annotated[str, typer.Argument(help="a run, or a stage's result")], remote: Remote = None) -> None:
    """Send a run with its full model to the DVC remote, file by file under its sha256."""
    from lockstep.launch.places import project_root
    from lockstep.records import carry
    from lockstep.records.find import find_run

    project = project_root()
    print(carry.push(project, find_run(project, run_name), remote).text("sent"))


def pull(run_id: Annotated[str, typer.Argument(help="a run's whole id")], remote: Remote = None) -> None:
    """Get a run with its full model from the DVC remote into this machine's runs folder."""
    from lockstep.launch.places import project_root
    from lockstep.records import carry

    print(carry.pull(project_root(), run_id, remote).text("received"))


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command line."""
    for verb in (submit, finish, push, pull):
        app.command()(verb)

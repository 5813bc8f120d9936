"""The command line: verbs only. Each imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep import cli_cluster, cli_export, cli_plan
from lockstep.cli_image import image
from lockstep.foundation.errors import LockstepError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Reproducible fine-tuning and RLHF: what was locked is what ran. Exit codes: 0 done, 2 wrong use, "
    "85 saved (run again), 93 do not run again, other: failed.",
)
app.add_typer(image, name="image")
cli_cluster.register(app)
cli_export.register(app)
cli_plan.register(app)

Stage = Annotated[str, typer.Argument(help="prepare, sft, reward, ppo, evaluate or report")]
RunName = Annotated[
    str, typer.Argument(help="a run id or its start, a stage (its newest result), an MLflow run id, or a run.json")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def main() -> None:
    """Runs the command line; errors for people are printed without a traceback and end with their own exit code."""
    try:
        app()
    except LockstepError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _project() -> Path:
    from lockstep.launch.places import project_root

    return project_root()


def _print(value: Any, as_json: bool, text: str) -> None:
    print(json.dumps(value, indent=2, sort_keys=True) if as_json else text)


@app.command()
def use(recipe: Annotated[str, typer.Argument(help="name or file of a recipe")]) -> None:
    """Write a recipe to params.yaml, comments included."""
    from lockstep.params.recipes import use_recipe

    path = use_recipe(_project(), recipe)
    print(f"params.yaml is now {path.name}. Next: ./lockstep fetch, then dvc repro (or: make repro).")


@app.command()
def fetch(as_json: AsJson = False) -> None:
    """Get the data and the model that params.yaml names; nothing else ever downloads."""
    from lockstep.launch.fetch import fetch_all

    fetched = fetch_all(_project())
    _print(fetched, as_json, "\n".join(f"{name}: {what}" for name, what in fetched.items()))


@app.command()
def run(
    stage: Stage,
    engine: Annotated[str | None, typer.Option(help="host, docker or apptainer")] = None,
    elastic: Annotated[int | None, typer.Option(help="go on with this many processes, same global batch")] = None,
    continue_from: Annotated[str | None, typer.Option(help="start from another run's newest checkpoint")] = None,
    until_step: Annotated[int | None, typer.Option(help="save and stop after this step")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the exact command, start nothing")] = False,
    shell: Annotated[bool, typer.Option("--shell", help="a shell where the stage would run")] = False,
    no_plan: Annotated[bool, typer.Option("--no-plan", help="start even if the plan says it does not fit")] = False,
) -> None:
    """Run one stage, or go on where it stopped. A complete run starts nothing."""
    from lockstep.launch.enter import exact_command, open_shell
    from lockstep.launch.prepare import RunOptions
    from lockstep.launch.run_stage import run_stage

    options = RunOptions(engine, elastic, continue_from, until_step, plan=not no_plan)
    if dry_run:
        print(exact_command(_project(), stage, options))
        return
    if shell:
        sys.exit(open_shell(_project(), stage, options))
    sys.exit(run_stage(_project(), stage, options))


@app.command()
def repro() -> None:
    """Set up what is missing, run all stages with DVC, and say where the report is."""
    from lockstep.launch.repro import reproduce

    sys.exit(reproduce(_project()))


@app.command()
def sweep(
    choices: Annotated[list[str], typer.Option("-S", "--set", help="as in -S sft.learning_rate=1e-5,2e-5; repeatable")],
    until: Annotated[str, typer.Option("--to", help="the last stage that each point goes through")] = "evaluate",
    num_jobs: Annotated[int, typer.Option("--jobs", min=1, help="runs at a time; they share this machine")] = 1,
    alone: Annotated[bool, typer.Option("--alone", hidden=True)] = False,
    as_json: AsJson = False,
) -> None:
    """Every combination of some parameters' values, each a run of its own, and one table of what came out.

    Changes neither params.yaml nor results. A winner becomes the result by writing its values to params.yaml: then
    `dvc repro` finds its runs complete. `./lockstep submit STAGE --grid` does it as a Slurm job array.
    """
    from lockstep.launch.sweep import Sweep
    from lockstep.params.grid import Grid
    from lockstep.records.trials import trial_rows, trial_table

    found = Sweep.of(_project(), Grid.parse(choices), until)
    if alone:
        sys.exit(found.run_alone())
    code = found.run(num_jobs)
    _print(trial_rows(found), as_json, trial_table(found))
    sys.exit(code)


@app.command()
def status(as_json: AsJson = False) -> None:
    """The runs on this machine, and the jobs that were submitted: state, steps, what ended the last attempt."""
    from lockstep.cluster.status import describe_jobs, jobs_table
    from lockstep.launch.places import runs_root
    from lockstep.records.listing import describe_runs, table

    project = _project()
    runs, jobs = describe_runs(project), describe_jobs(runs_root(project))
    text = f"{table(runs)}\n\n{jobs_table(jobs, runs_root(project))}" if jobs else table(runs)
    _print({"runs": runs, "jobs": jobs}, as_json, text)


@app.command()
def stop(run_name: Annotated[str, typer.Argument(help="a run id, its start, a stage, or a Slurm job's id")]) -> None:
    """Ask a run to save and stop at its next step; a job that still waits is taken out of the queue."""
    from lockstep.cluster.stop import stop as stop_run

    print(stop_run(_project(), run_name))


@app.command()
def generate(
    run_name: RunName,
    prompt: Annotated[str | None, typer.Option(help="one prompt; without it, a chat")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.7,
    seed: Annotated[int, typer.Option(help="the same seed gives the same text")] = 0,
) -> None:
    """Try a result: reference beside policy, for one prompt or in a chat."""
    from lockstep.launch.try_result import Question, ask
    from lockstep.records.find import find_run

    project = _project()
    sys.exit(ask(project, find_run(project, run_name), Question(prompt, max_new_tokens, temperature, seed)))


@app.command()
def rerun(
    run_name: RunName,
    until_step: Annotated[int | None, typer.Option(help="replay only up to this step")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a recorded run again from its commit, parameters and inputs, and say whether it came out the same."""
    from lockstep.records.compare import compare as compare_runs
    from lockstep.records.find import find_run
    from lockstep.records.rerun import rerun as run_again

    project = _project()
    original = find_run(project, run_name)
    comparison = compare_runs(original, run_again(project, original, until_step))
    _print(comparison.as_json(), as_json, comparison.text())
    sys.exit(comparison.exit_code)


@app.command()
def compare(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="two runs or more; see `rerun` for their names")],
    tolerance: Annotated[float, typer.Option(min=0.0, help="relative, on every decisive metric at every step")] = 1e-2,
    picture: Annotated[Path | None, typer.Option(help="also write the curves over each other, as an HTML page")] = None,
    as_json: AsJson = False,
) -> None:
    """Runs beside each other: what was locked differently, whether they came out the same, from which step they part.

    More than two give a table: each beside the first. Exit code 0: identical bits; 10: within the tolerance;
    11: different.
    """
    from lockstep.records.find import find_run
    from lockstep.records.lineup import draw, line_up

    project = _project()
    lineup = line_up([find_run(project, name) for name in names], tolerance)
    found = lineup if len(names) > 2 else lineup.comparisons[0]
    if picture is not None:
        draw(lineup, found.text(), picture)
    _print(found.as_json(), as_json, found.text() if picture is None else f"{found.text()}\nCurves: {picture}")
    sys.exit(found.exit_code)


@app.command()
def sync(
    watch: Annotated[bool, typer.Option("--watch", help="again and again until Ctrl-C, as on a login node")] = False,
    every: Annotated[float, typer.Option(min=1.0, help="seconds between two times")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Send to MLflow what could not be sent while runs went on."""
    from lockstep.launch.places import runs_root
    from lockstep.params.experiment import load_experiment
    from lockstep.tracking.mlflow_client import tracking_address
    from lockstep.tracking.sync import sync as sync_runs
    from lockstep.tracking.sync import watch as watch_runs

    project = _project()
    runs, parameters = runs_root(project), load_experiment(project / "params.yaml").run
    uri = tracking_address(runs, parameters.tracking_uri)
    if watch:
        watch_runs(runs, uri, parameters.experiment_name, every, say=print)
        return
    summary = sync_runs(runs, uri, parameters.experiment_name)
    _print(asdict(summary), as_json, summary.text())


@app.command()
def ui(
    port: Annotated[int | None, typer.Option(help="default: a free one")] = None,
    host: Annotated[
        str, typer.Option(help="address to listen on; others than this machine's own can then reach it")
    ] = ("127.0.0.1"),
) -> None:
    """Open the MLflow UI on this machine's runs."""
    from lockstep.launch.places import runs_root
    from lockstep.params.experiment import load_experiment
    from lockstep.tracking.ui import serve

    project = _project()
    sys.exit(serve(runs_root(project), load_experiment(project / "params.yaml").run, port, host))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """What is on this machine, what is missing, and how to mend it. Exit code 1 when something must be mended."""
    from lockstep.engines.doctor import examine, table
    from lockstep.launch.places import runs_root

    project = _project()
    findings = examine(project, runs_root(project))
    _print([asdict(finding) for finding in findings], as_json, table(findings))
    sys.exit(any(finding.state == "bad" for finding in findings))


@app.command()
def check(file: Annotated[Path, typer.Argument(help="a parameter file")] = Path("params.yaml")) -> None:
    """Check a parameter file and say every mistake in it."""
    from lockstep.params.experiment import load_experiment

    load_experiment(file)
    print(f"{file}: fine.")

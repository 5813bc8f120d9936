"""`lockstep rerun`: a recorded run again, from its commit, parameters and inputs, in a checkout of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lockstep.foundation.errors import EXIT_OK, EXIT_SAVED, LockstepError, UsageError
from lockstep.foundation.processes import capture
from lockstep.launch.places import main_checkout, runs_root
from lockstep.params.experiment import Experiment
from lockstep.params.stages import STAGES, Input, stage_spec
from lockstep.records.carry import pull
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.provenance import DIFF_FILE


@dataclass(frozen=True)
class Rerun:
    """Where a run is run again."""

    project: Path
    """The checkout that asked."""
    original: RunDirectory
    record: dict[str, Any]
    scratch: Path

    @property
    def checkout(self) -> Path:
        """A worktree of the recorded commit."""
        return self.scratch / "checkout"

    @property
    def runs(self) -> Path:
        """The runs folder of the rerun."""
        return self.scratch / "runs"


def rerun(project: Path, original: RunDirectory, until_step: int | None = None) -> RunDirectory:
    """Runs the stage of `original` again and returns the new run's directory, `runs/<stage>/<run id>.rerun-<n>`.

    Raises UsageError when the commit or an input cannot be had, LockstepError when the stage fails.
    """
    record = original.read()
    if not record or not record["attempts"]:
        raise UsageError(f"{original.root} holds no recorded run (no run.json with an attempt).")
    with _scratch(project, record["run_id"]) as scratch:
        again = Rerun(project, original, record, scratch)
        _check_out(again)
        _write_params(again)
        _provide_inputs(again)
        _run(again, until_step)
        return _keep(again)


@contextmanager
def _scratch(project: Path, run_id: str) -> Iterator[Path]:
    folder = main_checkout(project) / ".lockstep" / "reruns" / run_id
    if folder.exists():
        raise UsageError(f"{folder}: a rerun is going on, or was killed.\nIf none is, delete that folder.")
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        capture(["git", "worktree", "remove", "--force", str(folder / "checkout")], cwd=project)
        shutil.rmtree(folder, ignore_errors=True)


def _check_out(again: Rerun) -> None:
    """The recorded commit, with the recorded uncommitted changes where there were some."""
    commit = again.record["provenance"]["git"]["commit"]
    if capture(["git", "worktree", "add", "--detach", str(again.checkout), str(commit)], cwd=again.project) is None:
        raise UsageError(f"The recorded commit {commit} is not in this clone.\nGet it with: git fetch --all")
    changes = again.original.root / DIFF_FILE
    if changes.exists() and capture(["git", "apply", "--binary", str(changes)], cwd=again.checkout) is None:
        raise LockstepError(f"The recorded uncommitted changes do not apply to {commit}: {changes}")


def _write_params(again: Rerun) -> None:
    with open(again.checkout / "params.yaml", "w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(again.record["params"], file)


def _provide_inputs(again: Rerun) -> None:
    """Data and models by link to the asking checkout, results of earlier stages from the runs that made them.

    Whether they are what was locked is checked by the run itself: another content gives another run id.
    """
    experiment = Experiment.model_validate(again.record["params"])
    origin = main_checkout(again.project)
    for name, wanted in STAGES[again.record["stage"]].inputs(experiment).items():
        if wanted.stage:
            _provide_result(again, name, wanted)
        elif not (again.checkout / wanted.path).exists():
            _link(origin / (wanted.folder or wanted.path), again.checkout / (wanted.folder or wanted.path))
    if not (again.checkout / ".venv").exists() and (origin / ".venv").exists():
        _link(origin / ".venv", again.checkout / ".venv")


def _provide_result(again: Rerun, name: str, wanted: Input) -> None:
    maker = again.record["made_by"].get(name)
    source = runs_root(again.project) / str(wanted.stage) / str(maker)
    if not (source / "outputs").exists():
        print(f"{wanted.stage} run {maker} is not here; asking the DVC remote for it", file=sys.stderr)
        try:
            pull(again.project, str(maker))
        except UsageError as error:
            raise UsageError(
                f"Input '{name}' was made by {wanted.stage} run {maker}, which is not here.\n{error}\n"
                "Or run that stage again."
            ) from error
    results = again.checkout / "results" / str(wanted.stage)
    if not results.exists():
        results.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source / "outputs", results)
        _link(source, again.runs / str(wanted.stage) / str(maker))


def _link(source: Path, target: Path) -> None:
    if not source.exists():
        raise UsageError(f"{source} is needed to run again and is not here.\nGet it with: ./lockstep fetch")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source)


def _run(again: Rerun, until_step: int | None) -> None:
    attempt = again.record["attempts"][-1]
    command = ["./lockstep", "run", again.record["stage"], "--engine", attempt["engine"]]
    if until_step is not None:
        command += ["--until-step", str(until_step)]
    stage = stage_spec(again.record["stage"])
    if attempt["num_processes"] != stage.num_processes(Experiment.model_validate(again.record["params"])):
        command += ["--elastic", str(attempt["num_processes"])]
    environment = {**os.environ, "LOCKSTEP_RUNS": str(again.runs)}
    code = subprocess.run(command, cwd=again.checkout, env=environment, check=False).returncode
    if code not in (EXIT_OK, EXIT_SAVED):
        raise LockstepError(f"The rerun of {again.record['stage']} {again.record['run_id']} failed with code {code}.")


def _keep(again: Rerun) -> RunDirectory:
    """Moves the new run beside the original, where `compare` and `status` find it."""
    stage = again.record["stage"]
    made = next(path.parent for path in (again.runs / stage).glob("*/run.json") if not path.parent.is_symlink())
    number = 1
    while (target := again.original.root.with_name(f"{again.record['run_id']}.rerun-{number}")).exists():
        number += 1
    shutil.move(made, target)
    return RunDirectory(target)

"""`lockstep plan`, and the check before a start: the plan is made in a process of its own, wherever torch is."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.engines.base import Bind, LaunchRequest
from lockstep.engines.host import HostEngine
from lockstep.engines.select import select_engine
from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.foundation.files import read_json, write_json
from lockstep.launch.environment import worker_variables
from lockstep.params.experiment import Experiment, load_experiment
from lockstep.params.recipes import recipe_file
from lockstep.planning.hardware import Asked
from lockstep.planning.picture import show, verdict_line
from lockstep.planning.results import PLANNED


def plan_command(
    project: Path, recipe: str | None, asked: Asked, *, as_json: bool, figure: Path | None = None, savings: bool = True
) -> int:
    """Prints the plan of a recipe (None: of params.yaml). What it says is in its verdict; the exit code is 0.

    Raises UsageError for an unknown recipe or GPU, or a model that cannot be planned.
    """
    path = recipe_file(project, recipe) if recipe is not None else project / "params.yaml"
    plan = make_plan(project, load_experiment(path), asked, name=path.stem, savings=savings)
    if figure is not None:
        from lockstep.planning.figure import draw

        draw(plan, figure)
    if as_json:
        print(json.dumps(plan, indent=2, sort_keys=True))
    else:
        from rich.console import Console

        show(plan, Console())
    return 0


def check_fits(project: Path, experiment: Experiment, stage: str) -> dict[str, Any]:
    """Plans a stage for the hardware that the recipe states and returns verdict, peak and allowance (bytes per GPU).

    Empty where no hardware is stated, or the stage is not one that is planned, or on a machine without torch and
    without an image (a login node, say), which it then says. Raises UsageError with what would help where the stage
    does not fit.
    """
    if stage not in PLANNED or experiment.run.hardware is None or not getattr(experiment, stage).enabled:
        return {}
    if not _torch_is_here():
        try:
            select_engine(project, None, experiment.environment.sft)
        except UsageError as reason:
            print(f"{stage}: not planned before the start, {reason}", file=sys.stderr)
            return {}
    planned = make_plan(project, experiment, Asked(), name=stage, savings=False, stages=(stage,))["stages"][stage]
    if planned["verdict"] != "no":
        return {name: planned[name] for name in ("verdict", "peak_gpu_bytes", "allowance_bytes")}
    helps = [f"  {change['change']} ({change['verdict']})" for change in planned["suggestions"]]
    advice = "What would help:\n" + "\n".join(helps) + "\n" if helps else ""
    raise UsageError(
        f"{stage} {verdict_line(planned)}.\n{advice}See it with: ./lockstep plan. Start all the same with: --no-plan"
    )


def make_plan(
    project: Path,
    experiment: Experiment,
    asked: Asked,
    *,
    name: str,
    savings: bool,
    stages: Sequence[str] = (),
) -> dict[str, Any]:
    """The plan as JSON data, made by a worker in this environment, or by an engine where torch is not here.

    Raises UsageError or LockstepError with the worker's message.
    """
    scratch = project / ".lockstep" / "plan" / uuid.uuid4().hex[:8]
    request = {
        "name": name,
        "project": str(project),
        "params": experiment.model_dump(mode="json"),
        "asked": asdict(asked),
        "stages": list(stages),
        "savings": savings,
    }
    try:
        write_json(scratch / "request.json", request)
        return _answer(project, experiment, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _answer(project: Path, experiment: Experiment, scratch: Path) -> dict[str, Any]:
    request = LaunchRequest(
        argv=("python", "-m", "lockstep.planning.worker", "--folder", str(scratch)),
        project=project,
        workdir=project,
        scratch=scratch,
        attempt_name=f"lockstep-plan-{scratch.name}",
        flavour=experiment.environment.sft,
        binds=tuple(Bind(folder) for folder in (project / experiment.model.path,) if folder.is_dir()),
        environment=worker_variables(1),
    )
    command, environment = _worker(project, request)
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if not (scratch / "answer.json").exists():
        raise LockstepError(f"The plan could not be made (exit code {done.returncode}).\n{done.stdout[-4000:]}")
    answer: dict[str, Any] = read_json(scratch / "answer.json")
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer


def _worker(project: Path, request: LaunchRequest) -> tuple[list[str], dict[str, str]]:
    """Command and environment. A plan decides no result, so this Python will do, locked or not, if it has torch."""
    if _torch_is_here():
        (request.scratch / "tmp").mkdir(parents=True, exist_ok=True)
        return [sys.executable, *request.argv[1:]], HostEngine().process_environment(request)
    engine = select_engine(project, None, request.flavour)
    engine.prepare(request)
    return engine.command(request), engine.process_environment(request)


def _torch_is_here() -> bool:
    return importlib.util.find_spec("torch") is not None

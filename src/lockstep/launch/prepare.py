"""Before anything starts: a stage's parameters, inputs and locks, its run id, its record, what workers are handed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.engines.environment import environment_id
from lockstep.engines.lockfile import lock_path, read_lock
from lockstep.foundation.files import write_json
from lockstep.launch.attempts import now
from lockstep.launch.inputs import ResolvedInputs, resolve_inputs
from lockstep.launch.places import runs_root
from lockstep.params.experiment import Experiment, load_experiment
from lockstep.params.stages import StageSpec, stage_spec
from lockstep.runs.directory import RunDirectory
from lockstep.runs.identity import Identity, code_files, identify
from lockstep.tracking.provenance import DIFF_FILE, gather


@dataclass(frozen=True)
class RunOptions:
    """What one start may ask beyond the parameters; none of it enters the run id."""

    engine: str | None = None
    elastic: int | None = None
    """Continue on this many processes."""
    continue_from: str | None = None
    """Start from another run's newest checkpoint."""
    until_step: int | None = None
    """Stop (with a checkpoint) after this step."""
    plan: bool = True
    """Refuse a run that would not fit the hardware that the recipe states."""

    def for_workers(self) -> dict[str, Any]:
        """The options that workers act on."""
        return {"elastic": self.elastic, "continue_from": self.continue_from, "until_step": self.until_step}


@dataclass(frozen=True)
class Sources:
    """Where a run's code, data and earlier results come from; on one machine all three are the checkout."""

    code: Path
    """Holds `src`, params.yaml and the locks: the checkout, or a copy of it that a cluster job was submitted with."""
    checkout: Path
    """What the paths in params.yaml are relative to."""
    runs: Path
    results: Mapping[str, Path] = field(default_factory=dict)
    """Stage → folder that stands for `results/<stage>`: the outputs of a run that was not brought home yet."""

    @classmethod
    def of(cls, project: Path) -> Sources:
        """A checkout as it lies here."""
        return cls(project, project, runs_root(project))


@dataclass
class StageRun:
    """One stage of one experiment, ready to start: everything is checked and locked."""

    project: Path
    """Whose `src` runs."""
    checkout: Path
    """What paths in the parameters are relative to; the project itself, except in a cluster job."""
    spec: StageSpec
    experiment: Experiment
    identity: Identity
    inputs: ResolvedInputs
    runs: Path
    options: RunOptions = field(default_factory=RunOptions)

    @property
    def directory(self) -> RunDirectory:
        """The run's folder; the same locks lead to the same one."""
        return RunDirectory(self.runs / self.spec.name / self.identity.run_id)

    @property
    def num_processes(self) -> int:
        """Worker processes of this start; one is enough to say that a stage is turned off."""
        if not self.spec.enabled(self.experiment):
            return 1
        return self.options.elastic or self.spec.num_processes(self.experiment)


def prepare_run(sources: Sources, stage: str, options: RunOptions, experiment: Experiment | None = None) -> StageRun:
    """Checks parameters, environment and inputs, and derives the run id. Starts nothing.

    `experiment` defaults to the params.yaml beside the code. Raises UsageError or DoNotRetryError with what is wrong
    and how to mend it.
    """
    spec = stage_spec(stage)
    experiment = experiment or load_experiment(sources.code / "params.yaml")
    flavour = getattr(experiment.environment, stage)
    inputs = resolve_inputs(sources.checkout, sources.runs, spec, experiment, sources.results)
    locked_environment = environment_id(sources.code, flavour)
    identity = identify(spec, experiment, inputs.hashes, locked_environment, sources.code / "src" / "lockstep")
    return StageRun(sources.code, sources.checkout, spec, experiment, identity, inputs, sources.runs, options)


def new_record(run: StageRun, provenance: dict[str, Any] | None = None) -> dict[str, Any]:
    """The record of a run that has no attempt yet, and the details of its locks beside it.

    `provenance` is gathered here unless somebody who could see more (the host) hands it in.
    """
    packages = read_lock(lock_path(run.project, run.identity.environment["flavour"]))
    write_json(run.directory.lock_detail("packages"), {name: pin.version for name, pin in packages.items()})
    write_json(run.directory.lock_detail("code"), code_files(run.project / "src" / "lockstep", run.spec.code))
    return {
        "run_id": run.identity.run_id,
        "stage": run.spec.name,
        "status": "created",
        "created": now(),
        "locks": run.identity.locks,
        "made_by": run.inputs.made_by,
        "params": run.experiment.model_dump(),
        "provenance": provenance or gather(run.project, run.directory.root / DIFF_FILE),
        "attempts": [],
        "result": {},
    }


def hand_over(run: StageRun, number: int) -> None:
    """Writes the job file of one attempt, all that its workers know."""
    job = {
        "stage": run.spec.name,
        "run_id": run.identity.run_id,
        "params": run.experiment.model_dump(),
        "project": str(run.checkout),
        "inputs": {name: str(path) for name, path in run.inputs.paths.items()},
        "input_hashes": run.inputs.hashes,
        "options": run.options.for_workers(),
    }
    write_json(run.directory.job_file(number), job)

"""`lockstep submit`: what a job shall do is decided and recorded on the login node, then it goes into the queue."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.cluster.bad_nodes import bad_nodes
from lockstep.cluster.intent import Intent, all_intents, new_intent_path
from lockstep.cluster.resources import resource_words, script_words
from lockstep.cluster.site import site_settings
from lockstep.cluster.slurm import job_states, submit
from lockstep.cluster.source import keep_source
from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.foundation.files import write_json
from lockstep.launch.places import runs_root
from lockstep.launch.plan import check_fits
from lockstep.launch.prepare import RunOptions
from lockstep.params.experiment import Experiment, load_experiment
from lockstep.params.grid import Grid, Point, label
from lockstep.params.stages import STAGES, stage_spec
from lockstep.records.find import find_run
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.provenance import gather

CHAIN = ("prepare", "sft", "reward", "ppo", "evaluate")
"""What `--all` submits; the report needs the results at home."""
_MAY_CHANGE = frozenset({"params.yaml", "dvc.lock"})
"""Changes that make no dirty checkout: what they hold is recorded with every run."""


@dataclass(frozen=True)
class Request:
    """What one submission asks for beyond the parameters."""

    nodes: int = 1
    allow_dirty: bool = False
    options: RunOptions = field(default_factory=RunOptions)
    plan: bool = True
    """Whether what does not fit the stated hardware is refused."""
    sbatch: tuple[str, ...] = ()
    """Further words for sbatch."""


@dataclass(frozen=True)
class Submitted:
    """One line of the answer."""

    stage: str
    what: str
    """`submitted`, `already queued` or `complete already`."""
    job_id: str | None
    intent: Path | None
    run: Path | None
    point: str = ""

    def text(self) -> str:
        """For a terminal."""
        job = f" as job {self.job_id}" if self.job_id else ""
        run = f", run {self.run.name}" if self.run else ", run id follows when its inputs are there"
        return f"{self.stage}: {self.what}{job}{run}{f' ({self.point})' if self.point else ''}"


@dataclass
class Submitter:
    """Everything that the jobs of one submission share."""

    project: Path
    request: Request
    runs: Path
    settings: dict[str, str]
    provenance: dict[str, Any]
    source: Path
    diff: Path | None

    @classmethod
    def of(cls, project: Path, request: Request) -> Submitter:
        """Looks at the checkout once. Raises UsageError when it is dirty and may not be."""
        runs = runs_root(project)
        diff = new_intent_path(runs).with_suffix(".diff")
        provenance = gather(project, diff)
        try:
            refuse_dirty(provenance["git"], request.allow_dirty)
        except UsageError:
            diff.unlink(missing_ok=True)
            raise
        source = keep_source(project, runs)
        return cls(project, request, runs, site_settings(project), provenance, source, diff if diff.exists() else None)

    def submit(self, stage: str, after: Mapping[str, Path], experiment: Experiment) -> Submitted:
        """Records and submits one stage, or says why there is nothing to submit.

        `after` maps a stage to the intent or run directory whose outputs are read instead of `results/<stage>`.
        """
        intent = self._intent(stage, after, experiment, new_intent_path(self.runs))
        if twin := self._live_twin(intent):
            return Submitted(stage, "already queued or running", twin.job_id, twin.path, twin.run)
        if not intent.waits:
            record = intent.record(intent.resolve())
            if record["status"] == "complete":
                return Submitted(stage, "complete already", None, None, intent.run)
            if twin := self._live_twin(intent):
                return Submitted(stage, "already queued or running", twin.job_id, twin.path, twin.run)
        self._check_plan(intent)
        intent.save()
        words = [*self._wanted(intent), "--output", str(self._log("%x-%j.out"))]
        words += [*self._dependency(after), *self.request.sbatch]
        script = ["slurm/train.sbatch", stage, "--intent", str(intent.path), *script_words(intent, self.settings)]
        intent.job_id = self._sbatch([*words, *script])
        intent.save()
        return Submitted(stage, "submitted", intent.job_id, intent.path, intent.run)

    def submit_grid(self, stage: str, grid: Grid) -> list[Submitted]:
        """Records a run per point of the grid and submits them as one job array; complete points are left out."""
        points = grid.experiments(self.project / "params.yaml")
        folder = new_intent_path(self.runs).with_suffix("")
        answers: list[Submitted] = []
        intents: list[tuple[Point, Intent]] = []
        for point, experiment in points:
            intent = self._intent(stage, {}, experiment, folder / f"{len(intents)}.json")
            record = intent.record(intent.resolve())
            twin = self._live_twin(intent)
            if record["status"] == "complete" or twin:
                what = "already queued or running" if twin else "complete already"
                job_id = twin.job_id if twin else None
                answers.append(Submitted(stage, what, job_id, None, intent.run, label(point)))
                intent.path.unlink(missing_ok=True)
            else:
                self._check_plan(intent)
                intent.save()
                intents.append((point, intent))
        if intents:
            first = intents[0][1]
            words = [*self._wanted(first), "--output", str(self._log("%x-%A_%a.out")), f"--array=0-{len(intents) - 1}"]
            script = ["slurm/sweep.sbatch", stage, str(folder), *script_words(first, self.settings)]
            array = self._sbatch([*words, *self.request.sbatch, *script])
            for task, (point, intent) in enumerate(intents):
                intent.job_id = f"{array}_{task}"
                intent.save()
                answers.append(Submitted(stage, "submitted", intent.job_id, intent.path, intent.run, label(point)))
        return answers

    def _intent(self, stage: str, after: Mapping[str, Path], experiment: Experiment, path: Path) -> Intent:
        options = self.request.options
        asked = {"elastic": options.elastic, "continue_from": options.continue_from, "until_step": options.until_step}
        return Intent(
            path=path,
            stage=stage,
            checkout=self.project,
            source=self.source,
            runs=self.runs,
            params=experiment.model_dump(),
            provenance=self.provenance,
            options={name: value for name, value in asked.items() if value is not None},
            after={name: str(place) for name, place in after.items()},
            diff=str(self.diff) if self.diff else None,
        )

    def _check_plan(self, intent: Intent) -> None:
        """Raises UsageError where the run does not fit the hardware that the recipe states; asked once per run."""
        verdict = RunDirectory(intent.run).plan if intent.run else None
        if not self.request.plan or (verdict is not None and verdict.exists()):
            return
        planned = check_fits(self.project, intent.experiment, intent.stage)
        if verdict is not None:
            write_json(verdict, planned)

    def _live_twin(self, intent: Intent) -> Intent | None:
        """An intent for the same run (or, while the run is not known, of the same content) whose job is not over."""
        twins = [other for other in all_intents(self.runs) if other.job_id and _same(other, intent)]
        states = job_states([str(twin.job_id) for twin in twins])
        return next((twin for twin in reversed(twins) if states[str(twin.job_id)].is_live), None)

    def _wanted(self, intent: Intent) -> list[str]:
        excluded = [node.name for node in bad_nodes(self.runs)]
        return resource_words(intent, self.request.nodes, self.settings, excluded)

    def _log(self, name: str) -> Path:
        folder = self.runs / "log"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def _dependency(self, after: Mapping[str, Path]) -> list[str]:
        upstream = [Intent.load(place).job_id for place in after.values() if place.is_file()]
        live = [job_id for job_id, state in job_states([job for job in upstream if job]).items() if state.is_live]
        return [f"--dependency=afterok:{':'.join(live)}", "--kill-on-invalid-dep=yes"] if live else []

    def _sbatch(self, words: list[str]) -> str:
        """Submitted from the kept sources, so that Slurm and the script's own look-ups see those."""
        site = {name: value for name, value in self.settings.items() if name.startswith("SBATCH_")}
        return submit(words, self.source, site)


def submit_stage(project: Path, stage: str, request: Request, after: Path | None = None) -> list[Submitted]:
    """One stage; `after` is the run directory or intent whose result it reads."""
    stage_spec(stage)
    experiment = load_experiment(project / "params.yaml")
    with _one_at_a_time(runs_root(project)):
        upstream = {} if after is None else {_stage_of(after): after}
        return [Submitter.of(project, request).submit(stage, upstream, experiment)]


def submit_sweep(project: Path, stage: str, request: Request, grid: Grid) -> list[Submitted]:
    """One stage at every point of a grid, as a job array."""
    stage_spec(stage)
    with _one_at_a_time(runs_root(project)):
        return Submitter.of(project, request).submit_grid(stage, grid)


def submit_all(project: Path, request: Request) -> list[Submitted]:
    """Every stage of the experiment, each after those that it reads; stages that are complete are not run again."""
    experiment = load_experiment(project / "params.yaml")
    answers: list[Submitted] = []
    made: dict[str, Path] = {}
    with _one_at_a_time(runs_root(project)):
        submitter = Submitter.of(project, request)
        for stage in CHAIN:
            reads = {wanted.stage for wanted in STAGES[stage].inputs(experiment).values() if wanted.stage}
            answer = submitter.submit(stage, {name: made[name] for name in made if name in reads}, experiment)
            place = answer.intent or answer.run
            assert place is not None
            made[stage] = place
            answers.append(answer)
    return answers


def find_upstream(project: Path, name: str) -> Path:
    """What `--after NAME` means: the intent of a job (by its id, or by its run's), else the directory of a run.

    Raises UsageError for a name that is neither.
    """
    for intent in reversed(all_intents(runs_root(project))):
        if name in (intent.job_id, intent.run.name if intent.run else None):
            return intent.path
    return find_run(project, name).root


def refuse_dirty(git: Mapping[str, Any], allowed: bool) -> None:
    """Raises UsageError when tracked or new files differ from the commit, params.yaml and dvc.lock apart."""
    changed = [name for name in git.get("changed", []) if name not in _MAY_CHANGE]
    if changed and not allowed:
        shown = "\n".join(f"  {name}" for name in changed[:10])
        more = f"\n  … and {len(changed) - 10} more" if len(changed) > 10 else ""
        raise UsageError(
            f"The checkout differs from its commit:\n{shown}{more}\n"
            "Commit the changes, or submit with --allow-dirty, which keeps the difference with the run."
        )


def _same(other: Intent, intent: Intent) -> bool:
    if other.stage != intent.stage:
        return False
    if intent.run is not None and other.run is not None:
        return other.run == intent.run
    return (other.params, other.after, other.source) == (intent.params, intent.after, intent.source)


def _stage_of(place: Path) -> str:
    return Intent.load(place).stage if place.is_file() else place.parent.name


@contextmanager
def _one_at_a_time(runs: Path) -> Iterator[None]:
    """Two people (or two impatient clicks) never submit the same run between each other's look and order."""
    runs.mkdir(parents=True, exist_ok=True)
    with open(runs / ".submit.lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockstepError("Another ./lockstep submit is going on; repeat the command when it is done.") from None
        yield

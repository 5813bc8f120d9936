"""An intent: everything that was decided when a job was submitted, kept as one file until (and after) the job runs.

Where the inputs are there already, the run is known and recorded at once. A stage that waits for another job's result
gets its run when it starts; until then the intent is all there is of it.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from lockstep.foundation.errors import DoNotRetryError
from lockstep.foundation.files import read_json, write_json
from lockstep.launch.attempts import now
from lockstep.launch.prepare import RunOptions, Sources, StageRun, new_record, prepare_run
from lockstep.params.experiment import Experiment
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.provenance import DIFF_FILE

FOLDER = "intents"


@dataclass
class Intent:
    """What one job shall do. Paths are absolute; `after` maps a stage to the intent or run directory of its result."""

    path: Path
    stage: str
    checkout: Path
    source: Path
    runs: Path
    params: dict[str, Any]
    provenance: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)
    run: Path | None = None
    """The run's directory, once it is known."""
    job_id: str | None = None
    diff: str | None = None
    """A file with the local changes of a dirty checkout."""
    created: str = field(default_factory=now)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads an intent."""
        data = read_json(path)
        places = {name: Path(data[name]) for name in ("checkout", "source", "runs")}
        return cls(**{**data, **places, "path": path, "run": Path(data["run"]) if data["run"] else None})

    def save(self) -> None:
        """Writes it, whole or not at all."""
        data = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        del data["path"]
        write_json(self.path, data)

    @property
    def experiment(self) -> Experiment:
        """The parameters as they were when it was submitted."""
        return Experiment.model_validate(self.params)

    @property
    def waits(self) -> bool:
        """True while a stage that it reads has no result yet."""
        return any(_outputs(Path(place)) is None for place in self.after.values())

    def resolve(self) -> StageRun:
        """The run that this intent is, with everything checked: inputs are hashed now, and must be what was recorded.

        Raises UsageError for what is missing and DoNotRetryError where a lock does not match the record.
        """
        results = {stage: _outputs(Path(place)) for stage, place in self.after.items()}
        unfinished = [stage for stage, outputs in results.items() if outputs is None]
        if unfinished:
            raise DoNotRetryError(f"{self.stage} waits for {', '.join(unfinished)}, which has no result.")
        found = {stage: outputs for stage, outputs in results.items() if outputs is not None}
        sources = Sources(self.source, self.checkout, self.runs, found)
        run = prepare_run(sources, self.stage, RunOptions(**self.options), self.experiment)
        if self.run is not None and run.directory.root != self.run:
            raise DoNotRetryError(_changed(self.run, run))
        return run

    def record(self, run: StageRun) -> dict[str, Any]:
        """The run's record, written now unless an attempt of it has begun; the intent names the run from here on."""
        record = run.directory.read()
        if record is None or not record["attempts"]:
            record = {**new_record(run, self.provenance), "status": "submitted"}
            if self.diff:
                shutil.copyfile(self.diff, run.directory.root / DIFF_FILE)
            else:
                (run.directory.root / DIFF_FILE).unlink(missing_ok=True)
            run.directory.write(record)
        if self.run is None:
            self.run = run.directory.root
            self.save()
        return record


def new_intent_path(runs: Path) -> Path:
    """A fresh name for an intent."""
    return runs / FOLDER / f"{uuid.uuid4().hex[:12]}.json"


def all_intents(runs: Path) -> list[Intent]:
    """Every intent on this cluster, oldest first."""
    intents = [Intent.load(path) for path in (runs / FOLDER).rglob("*.json")]
    return sorted(intents, key=lambda intent: (intent.created, str(intent.path)))


def _outputs(place: Path) -> Path | None:
    """The outputs of the run that `place` (an intent's file, or a run directory) stands for; None while incomplete."""
    if place.is_file():
        named = Intent.load(place).run
        if named is None:
            return None
        place = named
    directory = RunDirectory(place)
    record = directory.read()
    return directory.outputs if record and record["status"] == "complete" else None


def _changed(recorded: Path, run: StageRun) -> str:
    locks = (RunDirectory(recorded).read() or {"locks": {}})["locks"]
    now_locks = run.identity.locks
    changed = [name for name in now_locks if locks.get(name) != now_locks[name]]
    inputs = [name for name, sha in now_locks["inputs"].items() if locks.get("inputs", {}).get(name) != sha]
    what = f"the inputs {', '.join(inputs)}" if inputs else ", ".join(changed)
    return (
        f"{run.spec.name}: {what} changed since run {recorded.name} was submitted; it would be another run.\n"
        f"Bring back what was recorded in {recorded / 'run.json'}, or submit again: ./lockstep submit {run.spec.name}"
    )

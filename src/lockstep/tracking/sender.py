"""Sends one execution to MLflow, as often as it takes: what arrived is noted, what is noted is not sent again.

Whatever happens in between (server away, a crash before the note, a database that lost what it had), opening again
finds the execution by its tag and goes on. Nothing here is needed for training: a caller may drop any error.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lockstep.foundation.files import read_json, sha256_file, write_json
from lockstep.tracking import described
from lockstep.tracking.checkpoints import Checkpoints
from lockstep.tracking.cursor import MAX_BATCH, Cursor, Sample, SendState
from lockstep.tracking.mlflow_client import experiment_id
from lockstep.tracking.system import system_spools

METRICS = "metrics.jsonl"
STATE_FILE = "mlflow.json"
_EXECUTION_FILE = "execution.json"
_MAX_PARAMS = 100
_MAX_ARTIFACT_BYTES = 32 * 2**20
_ARTIFACTS = {
    "dirty.diff": "",
    "run.json": "",
    "outputs/report.html": "",
    "outputs/metrics.json": "results",
    "outputs/samples.json": "results",
    "outputs/weights/manifest.json": "weights",
    "outputs/weights/adapter_config.json": "weights",
    "outputs/weights/README.md": "weights",
}


def execution_id(root: Path) -> str:
    """The name of this execution of a run: a uuid, made once in its directory and shared by all its attempts."""
    path = root / _EXECUTION_FILE
    if not path.exists():
        write_json(path, {"execution": uuid.uuid4().hex})
    return str(read_json(path)["execution"])


def mlflow_run_id(root: Path) -> str | None:
    """The id that the run in this directory has in MLflow; None before it was sent."""
    path = root / STATE_FILE
    return read_json(path).get("run_id") if path.exists() else None


class RunSender:
    """One execution and its MLflow run. Every method raises what MLflow raises; call `open` again after that."""

    def __init__(self, root: Path, client: Any, uri: str, experiment: str) -> None:
        """`root` is the run directory; `experiment` the base name, to which the stage is appended."""
        self._root, self._client, self._uri, self._experiment = root, client, uri, experiment
        self._state = SendState.load(root / STATE_FILE, uri)
        self._checkpoints: Checkpoints | None = None

    @property
    def run_id(self) -> str:
        """The id that MLflow gave this execution."""
        assert self._state.run_id is not None, "open() first"
        return self._state.run_id

    @property
    def _checkpoints_of_this_run(self) -> Checkpoints:
        assert self._checkpoints is not None, "open() first"
        return self._checkpoints

    @property
    def up_to_date(self) -> bool:
        """True when the ended run is in MLflow whole, as far as the notes say; ask after `open`."""
        if self._state.final_status != described.final_status(self._record()):
            return False
        return not any(self._cursor(name).next_batch(self._root / name)[0] for name in self._spools)

    def open(self) -> None:
        """Finds the execution's run in MLflow or makes it, and tells MLflow what it is."""
        record, execution = self._record(), execution_id(self._root)
        name = described.experiment_name(record["stage"], self._experiment)
        experiment = experiment_id(self._client, self._uri, name, self._root.parent.parent)
        query = f"tags.`{described.EXECUTION_TAG}` = '{execution}'"
        found = self._client.search_runs([experiment], query, max_results=1)
        run = found[0] if found else self._create(experiment, record, execution)
        if run.info.run_id != self._state.run_id or not self._holds_what_was_sent(run):
            self._state = SendState(self._uri, run.info.run_id)
        self._checkpoints = Checkpoints(self._root, self._client, experiment, self.run_id, execution)
        if not self._state.described:
            self._describe(record)

    def mark_running(self) -> None:
        """Says that an attempt is going on; a resumed run was KILLED or FAILED before."""
        self._state.final_status = None
        self._client.update_run(self.run_id, status="RUNNING")

    def pump(self) -> int:
        """Sends what the spools have grown by, and checkpoints that are new; returns the number of values sent."""
        sent = sum(self._pump_spool(name) for name in self._spools)
        self._register_checkpoints(before=self._newest_step())
        return sent

    def close(self) -> None:
        """Sends the rest, results, files and the final status, all read off what the run left in its directory."""
        record = self._record()
        self.pump()
        self._register_checkpoints(before=None)
        self._checkpoints_of_this_run.name_aliases()
        self._send(self._results(record))
        self._set_tags(
            described.tags(record, execution_id(self._root)) | {"mlflow.note.content": described.note(record)}
        )
        for name, folder in _ARTIFACTS.items():
            self._upload(self._root / name, folder)
        status = described.final_status(record)
        self._client.set_terminated(self.run_id, status=status, end_time=_end_time_ms(record))
        self._state.final_status = status
        self._save()

    @property
    def _spools(self) -> list[str]:
        return [METRICS, *system_spools(self._root)]

    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = read_json(self._root / "run.json")
        return record

    def _save(self) -> None:
        self._state.save(self._root / STATE_FILE)

    def _create(self, experiment: str, record: Mapping[str, Any], execution: str) -> Any:
        return self._client.create_run(
            experiment,
            start_time=described.time_ms(record["created"]),
            tags=described.tags(record, execution),
            run_name=described.run_name(record),
        )

    def _holds_what_was_sent(self, run: Any) -> bool:
        """False when the database is older than our notes (restored from a copy, say): its newest steps are missing."""
        for cursor in self._state.cursors.values():
            for key, value in cursor.newest.items():
                held = run.data.metrics.get(described.metric_key(key))
                if held is None or not (value is None or math.isclose(held, value, rel_tol=1e-9)):
                    return False
        return True

    def _describe(self, record: Mapping[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param

        params = [Param(key, value) for key, value in described.parameters(record).items()]
        for start in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(self.run_id, params=params[start : start + _MAX_PARAMS])
        inputs = [
            DatasetInput(
                Dataset(name=data["name"], digest=data["digest"], source_type="local", source=data["source"]),
                tags=[InputTag("mlflow.data.context", record["stage"])],
            )
            for data in described.data_sets(record, self._input_paths(record))
        ]
        if inputs:
            self._client.log_inputs(self.run_id, datasets=inputs)
        self._upload(self._root / "dirty.diff", "")
        self._state.described = True
        self._save()

    def _input_paths(self, record: Mapping[str, Any]) -> dict[str, str]:
        handed = self._root / "control" / f"job.{len(record['attempts'])}.json"
        paths: dict[str, str] = read_json(handed)["inputs"] if handed.exists() else {}
        return paths

    def _pump_spool(self, name: str) -> int:
        sent = 0
        while True:
            samples, behind = self._cursor(name).next_batch(self._root / name)
            if not samples:
                return sent
            self._send(samples)
            self._state.cursors[name] = behind
            self._save()
            sent += len(samples)

    def _cursor(self, name: str) -> Cursor:
        return self._state.cursors.get(name, Cursor())

    def _newest_step(self) -> int:
        return max(self._cursor(METRICS).highest.values(), default=0)

    def _send(self, samples: Iterable[Sample]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(described.metric_key(s.key), s.value, s.time_ms, s.step) for s in samples]
        for start in range(0, len(metrics), MAX_BATCH):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + MAX_BATCH])

    def _results(self, record: Mapping[str, Any]) -> list[Sample]:
        path = self._root / "outputs" / "metrics.json"
        if not path.exists():
            return []
        values, step = described.results(read_json(path)), self._newest_step()
        return [Sample(key, value, _end_time_ms(record), step) for key, value in values.items()]

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def _register_checkpoints(self, before: int | None) -> None:
        for name in self._checkpoints_of_this_run.register(self._state.models, before):
            self._state.models.append(name)
            self._save()

    def _upload(self, path: Path, folder: str) -> None:
        if not path.exists() or path.stat().st_size > _MAX_ARTIFACT_BYTES:
            return
        name, digest = path.relative_to(self._root).as_posix(), sha256_file(path)
        if self._state.artifacts.get(name) != digest:
            self._client.log_artifact(self.run_id, str(path), folder or None)
            self._state.artifacts[name] = digest
            self._save()


def _end_time_ms(record: Mapping[str, Any]) -> int:
    """When the newest attempt ended; for one that was killed, when it started."""
    attempts = record["attempts"]
    return described.time_ms(attempts[-1].get("ended", attempts[-1]["started"]) if attempts else record["created"])

"""Checkpoints as MLflow LoggedModels: step, path, manifest hash, metrics, `last` and `best`; nothing is uploaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.foundation.files import read_json, sha256_file
from lockstep.tracking.described import EXECUTION_TAG, metric_key, run_name
from lockstep.tracking.spool import Point, read_points


class Checkpoints:
    """The checkpoints of one run directory, seen from MLflow."""

    def __init__(self, root: Path, client: Any, experiment_id: str, run_id: str, execution: str) -> None:
        self._root, self._client = root, client
        self._run_name = run_name(read_json(root / "run.json"))
        self._experiment_id, self._run_id, self._execution = experiment_id, run_id, execution

    def register(self, known: list[str], before: int | None) -> Iterator[str]:
        """Registers complete checkpoints whose name is not `known`, below step `before`; yields each name when done.

        Below a step that was tracked already, because then the metrics of the checkpoint's own step are all there.
        """
        for step, manifest in self._complete():
            name = f"{self._run_name}-step-{step}"
            if name not in known and (before is None or step < before):
                self._register(name, step, manifest)
                yield name

    def name_aliases(self) -> None:
        """Tags the newest checkpoint that stands as `last` and the one of the lowest `eval_loss` as `best`.

        A checkpoint that was pruned since says so, and is neither.
        """
        query = f"tags.`{EXECUTION_TAG}` = '{self._execution}'"
        models = list(self._client.search_logged_models([self._experiment_id], query))
        standing = [model for model in models if Path(model.params["path"]).is_dir()]
        measured = [(loss, model) for model in standing if (loss := _eval_loss(model)) is not None]
        last = max(standing, key=lambda model: int(model.params["step"]), default=None)
        best = min(measured, key=lambda pair: pair[0])[1] if measured else None
        for model in models:
            aliases = [name for name, chosen in (("last", last), ("best", best)) if model is chosen]
            wanted = {"alias": " ".join(aliases), "pruned": str(model not in standing).lower()}
            if any(model.tags.get(key, "") != value for key, value in wanted.items()):
                self._client.set_logged_model_tags(model.model_id, wanted)

    def _complete(self) -> list[tuple[int, Path]]:
        found = (self._root / "checkpoints").glob("step-*/manifest.json")
        steps = [(path.parent.name.removeprefix("step-"), path) for path in found]
        return sorted((int(step), path) for step, path in steps if step.isdigit())

    def _register(self, name: str, step: int, manifest: Path) -> None:
        try:
            digest, content = sha256_file(manifest), read_json(manifest)
        except FileNotFoundError:
            return  # pruned between listing and reading
        model_id = self._find(name) or self._create(name, step, manifest, digest, content)
        self._attach_metrics(model_id, step)

    def _find(self, name: str) -> str | None:
        query = f"name = '{name}' AND tags.`{EXECUTION_TAG}` = '{self._execution}'"
        found = self._client.search_logged_models([self._experiment_id], query, max_results=1)
        return str(found[0].model_id) if found else None

    def _create(self, name: str, step: int, manifest: Path, digest: str, content: dict[str, Any]) -> str:
        facts = {
            "step": step,
            "path": manifest.parent,
            "manifest_sha256": digest,
            "world_size": content.get("world_size"),
        }
        model = self._client.create_logged_model(
            self._experiment_id,
            name=name,
            source_run_id=self._run_id,
            tags={EXECUTION_TAG: self._execution, "mlflow.model.isExternal": "true"},
            params={key: str(value) for key, value in facts.items() if value is not None},
            model_type="checkpoint",
        )
        self._client.finalize_logged_model(model.model_id, "READY")
        return str(model.model_id)

    def _attach_metrics(self, model_id: str, step: int) -> None:
        """The metrics of the checkpoint's step, with the spool's own times: MLflow has them once, for run and model."""
        from mlflow.entities import Metric

        values: dict[str, tuple[float, Point]] = {}
        for point in read_points(self._root / "metrics.jsonl"):
            if point.step == step:
                values = {key: (value, point) for key, value in point.values.items()} | values
        if values:
            metrics = [
                Metric(metric_key(key), value, point.time_ms, step, model_id=model_id, run_id=self._run_id)
                for key, (value, point) in values.items()
            ]
            self._client.log_batch(self._run_id, metrics=metrics)


def _eval_loss(model: Any) -> float | None:
    return next((metric.value for metric in model.metrics or [] if metric.key == "eval_loss"), None)

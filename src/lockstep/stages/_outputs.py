"""What every stage leaves: outputs that are whole or absent, and hold nothing but what the locks decide."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lockstep.foundation.files import replace_tree, sha256_file, write_atomic, write_json
from lockstep.models.weights import MANIFEST
from lockstep.runs.job import Job
from lockstep.tracking.spool import curves


class Outputs:
    """Collects a stage's outputs in its scratch folder; `publish` makes them appear at once."""

    def __init__(self, job: Job) -> None:
        """Clears what an earlier attempt may have left in the staging folder (rank 0)."""
        self._job = job
        self.staging = job.directory.scratch / "outputs"
        if job.is_main:
            shutil.rmtree(self.staging, ignore_errors=True)

    @property
    def weights(self) -> Path:
        """Where adapters and manifests go."""
        return self.staging / "weights"

    def json(self, name: str, value: Any) -> None:
        """Writes a JSON file."""
        write_json(self.staging / name, value)

    def curves(self, columns: Iterable[str]) -> None:
        """Writes `curves/train.tsv` from the spool: one row per step, the given columns (no speed, no memory)."""
        found = curves(self._job.directory.metrics)
        write_atomic(self.staging / "curves" / "train.tsv", _table(found, tuple(columns)))

    def publish(self, facts: dict[str, Any]) -> None:
        """Adds `result.json` (stage, run id, input hashes, manifest hash, `facts`) and makes the outputs appear."""
        job, manifest = self._job, self.weights / MANIFEST
        result = {"stage": job.stage, "run_id": job.run_id, "inputs": job.input_hashes, **facts}
        if manifest.exists():
            result["manifest_sha256"] = sha256_file(manifest)
        self.json("result.json", result)
        replace_tree(self.staging, job.directory.outputs)

    def skip(self, *names: str) -> None:
        """What a stage that is turned off leaves: the names that dvc.yaml promises, empty. Readers can tell."""
        if not self._job.is_main:
            return
        for name in ("metrics.json", *names):
            self._placeholder(name)
        self.json("result.json", {"skipped": True, "stage": self._job.stage})
        replace_tree(self.staging, self._job.directory.outputs)

    def _placeholder(self, name: str) -> None:
        if name == "weights":
            write_json(self.weights / MANIFEST, {"kind": "none", "files": {}, "weights_sha256": None})
        elif name == "curves":
            write_atomic(self.staging / "curves" / "train.tsv", "step\n")
        else:
            self.json(name, {} if name == "metrics.json" else [])


def _table(found: dict[str, list[tuple[int, float]]], columns: tuple[str, ...]) -> str:
    by_name = {name: dict(found.get(name, [])) for name in columns}
    steps = sorted({step for points in by_name.values() for step in points})
    rows = ["\t".join(("step", *columns))]
    for step in steps:
        cells = [by_name[name].get(step) for name in columns]
        rows.append("\t".join([str(step), *("" if value is None else repr(value) for value in cells)]))
    return "\n".join(rows) + "\n"

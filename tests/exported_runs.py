"""Recorded runs for tests of `lockstep export`: the record of a launcher, and the order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lockstep.data.encode import Sample
from lockstep.data.writer import TokenStoreWriter
from lockstep.exporting.order import Order
from lockstep.foundation.files import read_json, write_json
from lockstep.params.experiment import Experiment
from lockstep.params.stages import STAGES
from lockstep.runs.directory import RunDirectory
from tracked_runs import begin_attempt, end_attempt, new_run, read_record


def record_run(
    directory: RunDirectory, experiment: Experiment, *, status: str = "complete", made_by: dict[str, str] | None = None
) -> RunDirectory:
    """Writes run.json with one attempt into a run directory that may hold checkpoints and outputs already."""
    stage, runs = directory.root.parent.name, directory.root.parent.parent
    like = new_run(runs / "like", stage, STAGES[stage].deciding_params(experiment))
    begin_attempt(like)
    end_attempt(like, status, start_step=0, end_step=6, peak_memory_bytes=2.1e9)
    record = read_record(like)
    record |= {"run_id": directory.root.name, "params": experiment.model_dump(), "made_by": made_by or {}}
    if (directory.outputs / "result.json").exists():
        record["result"] = read_json(directory.outputs / "result.json")
    write_json(directory.run_json, record)
    return directory


def order(directory: RunDirectory, dest: Path, inputs: dict[str, Path], **changes: Any) -> Order:
    """An export of `directory` to `dest`: of its result, whole, unless `changes` say otherwise."""
    asked: dict[str, Any] = {"step": None, "merge": False, "max_shard_bytes": 100_000, **changes}
    paths = {name: str(path) for name, path in inputs.items()}
    return Order(str(directory.root), str(dest.parent), str(dest), inputs=paths, **asked)


def write_tokens(folder: Path, chat_template: str) -> Path:
    """What `prepare` leaves for SFT, with one row: its chat template goes into exports."""
    tokens = np.arange(3, 9, dtype=np.int32)
    with TokenStoreWriter(folder / "train", 48, chat_template) as writer:
        writer.add([Sample(tokens, tokens)])
    return folder

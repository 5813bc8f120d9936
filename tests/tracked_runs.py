"""Run directories as launcher and workers leave them: for tests of what reads them (MLflow, report, records)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lockstep
from lockstep.foundation.files import canonical_json, sha256_bytes, write_json
from lockstep.tracking.spool import Spool

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lockstep.__file__).parents[1])}
"""For subprocesses that import the package, which is installed nowhere."""
SFT_PARAMS = {
    "seed": 42,
    "model": {"path": "data/models/smollm2-135m-instruct", "master_dtype": "fp32", "precision": {"compute": "fp32"}},
    "sft": {"learning_rate": 1e-4, "max_steps": 20, "lora": None, "betas": [0.9, 0.95]},
}


def new_run(runs: Path, stage: str = "sft", params: Mapping[str, Any] | None = None, **locks: Any) -> Path:
    """A run directory with its record, before the first attempt."""
    params = dict(params or SFT_PARAMS)
    locked = {
        "params": params,
        "inputs": {"tokens": sha256_bytes(b"tokens"), "model": sha256_bytes(b"model")},
        "environment": {"flavour": "cpu", "id": sha256_bytes(b"environment")},
        "code": sha256_bytes(b"code"),
        **locks,
    }
    run_id = sha256_bytes(canonical_json({"stage": stage, **locked}).encode())[:12]
    root = runs / stage / run_id
    record = {
        "run_id": run_id,
        "stage": stage,
        "status": "created",
        "created": "2026-11-30T10:00:00+00:00",
        "locks": locked,
        "params": {**params, "run": {"logging_steps": 1}},
        "provenance": {
            "git": {"commit": "c0ffee" * 6 + "beef", "branch": "main", "dirty": False, "changed": [], "remote": None},
            "hardware": {"class": "x86_64 avx2", "cpu": {"model": "CPU", "isa": "avx2", "num_cores": 2}, "gpus": []},
            "python": "3.11.7",
            "platform": "Linux",
            "dvc": {"exp_name": None},
            "slurm": {},
        },
        "attempts": [],
        "result": {},
    }
    write_json(root / "run.json", record)
    return root


def begin_attempt(root: Path) -> int:
    """An open attempt at the end of the record; returns its number."""
    record = read_record(root)
    number = len(record["attempts"]) + 1
    started = f"2026-11-30T10:{10 * number:02d}:00+00:00"
    record["attempts"].append(
        {
            "attempt": number,
            "started": started,
            "reason": "running",
            "engine": "host",
            "num_processes": 2,
            "threads_per_process": 1,
        }
    )
    record["status"] = "running"
    write_json(root / "run.json", record)
    return number


def end_attempt(root: Path, status: str = "complete", **outcome: Any) -> None:
    """Closes the newest attempt and the record with it."""
    record = read_record(root)
    attempt = record["attempts"][-1]
    attempt.update({"ended": f"2026-11-30T10:{10 * attempt['attempt'] + 5:02d}:00+00:00", "reason": status, **outcome})
    record["status"] = status
    if status == "complete":
        record["result"] = {"stage": record["stage"], "weights_sha256": sha256_bytes(b"weights")}
    write_json(root / "run.json", record)


def read_record(root: Path) -> dict[str, Any]:
    """The record as it stands."""
    record: dict[str, Any] = json.loads((root / "run.json").read_text())
    return record


def train(root: Path, attempt: int, steps: range, slope: float = 0.05) -> None:
    """What a training loop leaves in the spool: a falling loss, a warmed-up rate, an evaluation every fifth step."""
    with Spool(root / "metrics.jsonl", attempt=attempt) as spool:
        for step in steps:
            values = {"loss": 4 * math.exp(-slope * step), "learning_rate": 1e-4 * min(1, step / 5)}
            if step % 5 == 0:
                values["eval_loss"] = values["loss"] + 0.1
            spool.append(step, values)

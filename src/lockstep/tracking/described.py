"""What MLflow is told of a run besides its curves: names, parameters, tags, data sets; plain data off run.json."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from lockstep.foundation.files import canonical_json, sha256_bytes

EXECUTION_TAG = "lockstep.execution"
_MAX_PARAM = 6000
_MAX_DIGEST = 36
_STATUS = {"complete": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_WEIGHTS = frozenset({"model", "sft", "reward", "ppo"})


def final_status(record: Mapping[str, Any]) -> str:
    """MLflow's word for how a run ended. One still called running when nobody runs it was killed."""
    return _STATUS.get(record["status"], "KILLED")


def experiment_name(stage: str, base: str) -> str:
    """One experiment per stage, so that the runs of one table have the same metrics."""
    return f"{base}/{stage}"


def run_name(record: Mapping[str, Any]) -> str:
    """What the run is about (the DVC experiment's name, else the model), and its short id."""
    about = record["provenance"].get("dvc", {}).get("exp_name") or model_name(record["params"])
    slug = re.sub(r"[^a-z0-9]+", "-", about.lower()).strip("-")
    return f"{slug}-{record['run_id'][:6]}"


def model_name(params: Mapping[str, Any]) -> str:
    """The model as a hub or its folder names it: of `hub:org/name@commit` the name, of `data/smollm2/model` smollm2."""
    model = params.get("model", {})
    kind, _, source = str(model.get("source", "")).partition(":")
    path = PurePosixPath(source.partition("@")[0] if kind == "hub" else str(model.get("path", "model")))
    return path.parent.name if path.name == "model" and path.parent.name else path.name


def parameters(record: Mapping[str, Any]) -> dict[str, str]:
    """The deciding parameters under dotted names; they never change within a run, so MLflow never refuses one."""
    texts = {metric_key(key): _text(value) for key, value in flatten(record["locks"]["params"]).items()}
    return {key: text if len(text) <= _MAX_PARAM else text[: _MAX_PARAM - 1] + "…" for key, text in texts.items()}


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings and lists of mappings as one flat mapping: `{"a": {"b": 1}}` → `{"a.b": 1}`."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in items:
        flat.update(flatten(item, f"{prefix}.{key}" if prefix else key))
    return flat


def metric_key(key: str) -> str:
    """The key with characters that MLflow refuses replaced."""
    return re.sub(r"[^\w\-. /:]", "_", key)


def tags(record: Mapping[str, Any], execution: str) -> dict[str, str]:
    """What links a run to commit, locks, environment and machine; unknown facts have no tag."""
    locks, provenance = record["locks"], record["provenance"]
    git, attempt = provenance.get("git", {}), _newest_attempt(record)
    wanted = {
        EXECUTION_TAG: execution,
        "lockstep.run_id": record["run_id"],
        "dvc.stage": record["stage"],
        "dvc.exp_name": provenance.get("dvc", {}).get("exp_name"),
        "mlflow.source.name": f"./lockstep run {record['stage']}",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.git.branch": git.get("branch"),
        "git.commit": git.get("commit"),
        "git.dirty": git.get("dirty"),
        "git.diff_sha256": git.get("diff_sha256"),
        "params.sha256": sha256_bytes(canonical_json(locks["params"]).encode()),
        "code.sha256": locks.get("code"),
        "environment.id": locks.get("environment", {}).get("id"),
        "environment.flavour": locks.get("environment", {}).get("flavour"),
        "hardware.class": provenance.get("hardware", {}).get("class"),
        "engine": attempt.get("engine"),
        "world_size": attempt.get("num_processes"),
        "attempts": len(record["attempts"]),
        "weights.sha256": (record.get("result") or {}).get("weights_sha256"),
        **{f"input.{name}.sha256": digest for name, digest in locks["inputs"].items()},
        **{f"slurm.{name}": value for name, value in provenance.get("slurm", {}).items()},
    }
    return {key: _text(value) for key, value in wanted.items() if value is not None}


def data_sets(record: Mapping[str, Any], paths: Mapping[str, str]) -> list[dict[str, str]]:
    """Name, digest and source of each data input; `paths` gives what is known of where an input lay.

    Weights and code are inputs too, but no data sets. In `prepare` alone, `sft` and the like name raw data.
    """
    others = {"model"} if record["stage"] == "prepare" else {*_WEIGHTS, "reward_file"}
    return [
        {"name": name, "digest": digest[:_MAX_DIGEST], "source": json.dumps({"path": paths.get(name, name)})}
        for name, digest in sorted(record["locks"]["inputs"].items())
        if name not in others
    ]


def note(record: Mapping[str, Any]) -> str:
    """The run's description in MLflow (Markdown): how to look at it again and how it went."""
    run, stage = record["run_id"], record["stage"]
    lines = [
        f"**{stage}** `{run}`: {record['status']}",
        "",
        f"- files: `runs/{stage}/{run}`",
        f"- try it again: `./lockstep rerun {run}`",
    ]
    for attempt in record["attempts"]:
        steps = f", steps {attempt['start_step']} to {attempt['end_step']}" if "end_step" in attempt else ""
        lines.append(f"- attempt {attempt['attempt']}: {attempt['reason']}{steps}")
    return "\n".join(lines)


def results(metrics: Any) -> dict[str, float]:
    """The numbers of a stage's metrics.json as MLflow metrics below `result/`; the ends of an interval get an index."""
    found: dict[str, float] = {}
    for key, value in flatten(metrics).items():
        numbers = {f"{key}.{i}": item for i, item in enumerate(value)} if isinstance(value, list) else {key: value}
        for name, number in numbers.items():
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                found[f"result/{metric_key(name)}"] = float(number)
    return found


def time_ms(iso: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time."""
    return int(dt.datetime.fromisoformat(iso).timestamp() * 1000)


def _newest_attempt(record: Mapping[str, Any]) -> Mapping[str, Any]:
    attempts: list[Mapping[str, Any]] = record["attempts"]
    return attempts[-1] if attempts else {}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)

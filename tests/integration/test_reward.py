"""The reward stage: it learns to rank held-out pairs, resumes to the bit, and PPO reads what it left."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from exported_runs import order, record_run
from lockstep.exporting.worker import carry_out
from lockstep.foundation.errors import StoppedAfterSave, UsageError
from lockstep.foundation.files import read_json
from lockstep.models.weights import read_manifest
from lockstep.params.ppo import RewardSourceParams
from lockstep.runs.directory import RunDirectory
from lockstep.runs.job import Job
from lockstep.stages import ppo, reward
from lockstep.training.ppo.pairs import tokenised_pairs
from lockstep.training.ppo.rewards import build_reward
from lockstep.training.ppo.roles import Adapters, build_backbone
from ppo_cases import ppo_job, tiny_model, tiny_params, tiny_tokenizer, write_inputs, write_lines
from tiny_llama import experiment

pytestmark = pytest.mark.integration

SETTINGS = {"enabled": True, "max_steps": 16, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "max_length": 24}


def pairs(count: int, seed: int) -> list[dict[str, Any]]:
    """Chosen answers are made of the first quarter of the words."""
    generator = torch.Generator().manual_seed(seed)

    def words(low: int, high: int) -> str:
        return "".join(f" w{int(token)}" for token in torch.randint(low, high, (6,), generator=generator))

    return [
        {"id": str(i), "prompt": words(3, 256), "chosen": words(3, 64), "rejected": words(64, 256), "source": "tiny"}
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward")
    write_inputs(folder)
    write_lines(folder / "preferences" / "train.jsonl", pairs(160, 0))
    write_lines(folder / "preferences" / "eval.jsonl", pairs(40, 1))
    return folder


def job(project: Path, run: str, *, attempt: int = 1, **changes: Any) -> Job:
    sources = {part: {"sources": [{"source": "jsonl:lines.jsonl"}]} for part in ("sft", "prompts", "preferences")}
    params = experiment(data=sources, reward={**SETTINGS, **changes})
    made = ppo_job(project, run, attempt=attempt)
    inputs = {**made.inputs, "preferences": project / "preferences"}
    return replace(made, stage="reward", params=params, inputs=inputs)


@pytest.fixture(scope="module")
def trained(project: Path) -> Job:
    whole = job(project, "whole")
    reward.run(whole)
    return whole


def test_held_out_pairs_are_ranked_better_than_by_chance(trained: Job) -> None:
    metrics = read_json(trained.directory.outputs / "metrics.json")
    assert metrics["num_eval_pairs"] == 40
    assert metrics["eval_accuracy"] >= 0.7


def test_a_stopped_run_ends_with_the_bits_of_one_that_was_not(project: Path, trained: Job) -> None:
    with pytest.raises(StoppedAfterSave, match="saved at step 5"):
        reward.run(replace(job(project, "parts"), options={"until_step": 5}))
    reward.run(job(project, "parts", attempt=2))
    hashes = [
        read_json(run.directory.outputs / "result.json")["weights_sha256"] for run in (trained, job(project, "parts"))
    ]
    assert hashes[0] == hashes[1]


def test_ppo_scores_as_the_stage_did(trained: Job) -> None:
    """Through the policy's backbone, left-padded and batched, the pairs are ranked as the stage ranked them."""
    weights = trained.directory.outputs / "weights"
    scorer = build_reward(
        RewardSourceParams(kind="model", batch_size=7),
        project=trained.project,
        reviews=trained.project,
        reward_weights=weights,
        backbone=build_backbone(tiny_model(), Adapters(reward=weights), tiny_params().lora, 0),
        tokenizer=tiny_tokenizer(),
    )
    rows = pairs(40, 1)
    chosen, rejected = (scorer.score([row["prompt"] + row[kind] for row in rows]) for kind in ("chosen", "rejected"))
    accuracy = sum(a > b for a, b in zip(chosen, rejected, strict=True)) / 40
    assert accuracy == read_json(trained.directory.outputs / "metrics.json")["eval_accuracy"]


def test_ppo_trains_against_the_reward_model(project: Path, trained: Job) -> None:
    weights = trained.directory.outputs / "weights"
    with_model = ppo_job(project, "with-model")
    source = RewardSourceParams(kind="model")
    params = with_model.params.model_copy(
        update={"ppo": with_model.params.ppo.model_copy(update={"reward": source, "max_steps": 1})}
    )
    ppo.run(replace(with_model, params=params, inputs={**with_model.inputs, "reward": weights}))
    assert read_json(with_model.directory.outputs / "metrics.json")["objective/score_std"] > 0


def test_pairs_that_are_too_long_are_counted_and_none_left_is_refused(project: Path) -> None:
    path = project / "preferences" / "eval.jsonl"
    kept, num_too_long = tokenised_pairs(path, tiny_tokenizer(), 24)
    assert (len(kept), num_too_long) == (40, 0)
    with pytest.raises(UsageError, match="40 are longer"):
        tokenised_pairs(path, tiny_tokenizer(), 8)


def test_a_stage_that_is_turned_off_says_so(project: Path) -> None:
    off = job(project, "off", enabled=False)
    reward.run(off)
    assert read_json(off.directory.outputs / "weights" / "manifest.json")["kind"] == "none"


def test_its_last_checkpoint_exports_to_what_the_run_ended_with(trained: Job, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "reward" / trained.run_id)
    shutil.copytree(trained.directory.root, run.root)
    without_sft = trained.params.sft.model_copy(update={"enabled": False})
    record_run(run, trained.params.model_copy(update={"sft": without_sft}))
    carry_out(order(run, tmp_path / "reward", trained.inputs, step="last"))
    assert read_manifest(tmp_path / "reward") == read_manifest(trained.directory.outputs / "weights")
    card = (tmp_path / "reward" / "README.md").read_text()
    assert "pairs ranked right" in card
    assert "head.safetensors" in card

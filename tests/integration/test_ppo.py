"""PPO as a whole: the stage resumes to the bit on every kind of backbone, two ranks act as one, rewards rise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.foundation.errors import StoppedAfterSave, UsageError
from lockstep.foundation.files import read_json
from lockstep.models.weights import verify_manifest
from lockstep.runs.job import Job
from lockstep.stages import ppo
from lockstep.training.ppo.roles import Role
from lockstep.training.ppo.rollout import generate
from lockstep.training.ppo.samples import read_sample_tables
from lockstep.training.ppo.sampling import Stream, uniforms
from ppo_cases import EOS, ppo_job, tiny_engine, tiny_params, tiny_prompts, write_inputs
from ppo_world import ONE_UPDATE, all_cases, elastic_part, reward_model
from worlds import run_world

pytestmark = pytest.mark.integration

KINDS: dict[str, dict[str, Any]] = {
    "fp32": {"quantization": "off"},
    "int8": {"quantization": {"load_in_8bit": True}},
    "nf4": {"quantization": {"load_in_4bit": True}},
    # Adapters wide enough that bitsandbytes does keep their moments in 8 bits.
    "8-bit moments": {"optim": "paged_adamw_8bit", "lora": {"r": 64, "lora_alpha": 64}},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ppo")
    write_inputs(folder)
    return folder


def result_of(job: Job) -> dict[str, Any]:
    return read_json(job.directory.outputs / "result.json")


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_stopped_run_ends_with_the_bits_of_one_that_was_not(project: Path, kind: str) -> None:
    changes: dict[str, Any] = {
        "max_steps": 3,
        **KINDS[kind],
        "scale_rewards": True,
        "kl_target": 0.1,
    }
    whole = ppo_job(project, f"{kind}-whole", ppo=changes)
    ppo.run(whole)
    parts = ppo_job(project, f"{kind}-parts", ppo=changes)
    with pytest.raises(StoppedAfterSave, match="saved at step 2"):
        ppo.run(replace(parts, options={"until_step": 2}))
    assert not parts.directory.outputs.exists()
    resumed = ppo_job(project, f"{kind}-parts", ppo=changes, attempt=2)
    ppo.run(resumed)
    outcome = read_json(resumed.directory.outcome_file(2))
    assert (outcome["start_step"], outcome["end_step"]) == (2, 3)
    assert result_of(resumed)["weights_sha256"] == result_of(whole)["weights_sha256"]
    curves = [(job.directory.outputs / "curves" / "train.tsv").read_text() for job in (whole, resumed)]
    assert curves[0] == curves[1]
    assert len(curves[0].splitlines()) == 4
    samples = [(job.directory.outputs / "samples.json").read_text() for job in (whole, resumed)]
    assert samples[0] == samples[1]


def test_the_outputs_are_whole_and_hold_nothing_of_the_machine(project: Path) -> None:
    job = ppo_job(project, "outputs", run={"sample_steps": 1})
    ppo.run(job)
    names = {path.relative_to(job.directory.outputs).as_posix() for path in job.directory.outputs.rglob("*.*")}
    assert names == {
        "result.json", "metrics.json", "samples.json", "curves/train.tsv", "weights/manifest.json",
        "weights/adapter_config.json", "weights/adapter_model.safetensors", "weights/value_head.safetensors",
    }  # fmt: skip
    verify_manifest(job.directory.outputs / "weights", read_json(job.directory.outputs / "weights" / "manifest.json"))
    text = "".join(path.read_text() for path in job.directory.outputs.rglob("*.json"))
    text += (job.directory.outputs / "curves" / "train.tsv").read_text()
    assert str(project) not in text
    assert "tokens_per_s" not in text
    tables = read_sample_tables(job.directory.root / "samples.jsonl")
    assert [table["step"] for table in tables] == [1, 2]
    assert len(tables[0]["samples"]) == 8
    outcome = read_json(job.directory.outcome_file(1))
    assert outcome["memory"]["counted_bytes"]["backbone"] > 0
    assert set(outcome["memory"]["peak_bytes"]) == {"rollout", "scoring", "update"}


def test_a_stage_that_is_turned_off_leaves_its_names(project: Path) -> None:
    job = ppo_job(project, "off", ppo={"enabled": False})
    ppo.run(job)
    assert result_of(job) == {"skipped": True, "stage": "ppo"}
    assert (job.directory.outputs / "weights" / "manifest.json").exists()


def test_a_reward_that_is_not_there_is_named_before_training(project: Path) -> None:
    job = ppo_job(project, "noreward")
    source = job.params.ppo.reward.model_copy(update={"file": "rewards/words.py:scores"})
    params = job.params.model_copy(update={"ppo": job.params.ppo.model_copy(update={"reward": source})})
    with pytest.raises(UsageError, match=r"no function 'scores'.*Did you mean 'score'"):
        ppo.run(replace(job, params=params))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    elastic_part(0, 1, folder / "to-two", until_step=2)
    reward_model(0, 1, folder / "reward-to-two", until_step=2)
    return run_world(2, all_cases, folder)


def test_two_ranks_take_the_step_that_one_would(ranks: list[dict[str, Any]]) -> None:
    changes = {**ONE_UPDATE, "num_processes": 1}
    alone = tiny_engine(tiny_params(**changes)).step()
    both = [rank["one_update"] for rank in ranks]
    assert both[0]["texts"] + both[1]["texts"] == alone.experience.texts
    assert both[0]["weights"] == both[1]["weights"]
    for name in ("policy/grad_norm", "value/grad_norm", "policy/loss", "value/loss", "objective/score",
                 "objective/score_std", "policy/entropy", "num_tokens"):  # fmt: skip
        assert both[0]["metrics"][name] == both[1]["metrics"][name]
        assert both[0]["metrics"][name] == pytest.approx(alone.metrics[name], rel=1e-4, abs=1e-6)


def test_gradients_are_summed_over_ranks_also_where_one_has_none(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["gradients_are_summed"] == {"full": [[3.0] * 3] * 2, "half": [1.0] * 4}


def test_two_ranks_resume_to_the_bit(ranks: list[dict[str, Any]]) -> None:
    for case in (rank["resume"] for rank in ranks):
        assert case["message"] == "saved at step 2; repeat the command to go on"
        assert case["resumed"] == case["whole"] != case["stopped"]
    assert ranks[0]["resume"]["whole"] == ranks[1]["resume"]["whole"]


def test_ppo_goes_on_with_other_numbers_of_ranks(ranks: list[dict[str, Any]], folder: Path) -> None:
    both = ranks[0]["elastic"]
    assert "--elastic" in both["refused"]
    assert (list(both["whole"]), list(both["to_one"]), list(both["to_two"])) == ([1, 2, 3, 4], [1, 2], [3, 4])
    rest = {"2 to 1": elastic_part(0, 1, folder / "to-one"), "1 to 2": both["to_two"]}
    for metrics in rest.values():
        assert list(metrics) == [3, 4]
        for step in (3, 4):
            for name in ("objective/score", "objective/kl", "policy/loss", "value/loss", "num_tokens"):
                assert metrics[step][name] == pytest.approx(both["whole"][step][name], rel=1e-3, abs=1e-5), (step, name)


def test_a_stop_in_a_rollout_abandons_it_and_costs_no_bit(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["stop"]["message"] == "saved at step 2; repeat the command to go on"
        assert rank["stop"]["resumed"] == rank["resume"]["whole"]


def test_two_ranks_train_the_reward_model_that_one_would(
    ranks: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    alone = reward_model(0, 1, tmp_path)
    first, second = (rank["reward"] for rank in ranks)
    assert torch.equal(first["head"], second["head"])
    assert first["head"].abs().max() > 0
    torch.testing.assert_close(first["head"], alone["head"], rtol=1e-3, atol=1e-6)
    for name, parameter in alone["adapter"].items():
        assert torch.equal(first["adapter"][name], second["adapter"][name])
        torch.testing.assert_close(first["adapter"][name], parameter, rtol=1e-2, atol=1e-4)


def test_the_reward_model_goes_on_with_other_numbers_of_ranks(
    ranks: list[dict[str, Any]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    whole = ranks[0]["reward"]
    for rest in (ranks[0]["reward_to_two"], reward_model(0, 1, folder / "reward-to-one", elastic=True)):
        torch.testing.assert_close(rest["head"], whole["head"], rtol=1e-3, atol=1e-6)
        for name, parameter in whole["adapter"].items():
            torch.testing.assert_close(rest["adapter"][name], parameter, rtol=1e-2, atol=1e-4)


class HalfTheWords:
    """The share of the first half of the vocabulary among the last four words."""

    def score(self, texts: list[str]) -> list[float]:
        return [sum(int(word[1:]) < 128 for word in text.split()[-4:] if word[0] == "w") / 4 for text in texts]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_reward_rises_on_held_out_prompts_with_bounded_kl(seed: int) -> None:
    params = tiny_params(
        max_steps=16, max_new_tokens=4, rollout_batch_size=128, per_device_rollout_batch_size=128,
        per_device_train_batch_size=32, num_mini_batches=4, num_ppo_epochs=1, kl_coef=0.02,
    )  # fmt: skip
    engine = tiny_engine(params, seed=seed, reward=HalfTheWords())
    for _ in range(16):
        metrics = engine.step().metrics
    prompts = [[token + 1 for token in prompt if token < 255] or [7] for prompt in tiny_prompts(256)]
    noise = uniforms(seed, Stream.EVALUATION, 0, list(range(256)), 4)
    means = {}
    for role in (Role.REFERENCE, Role.POLICY):
        found = generate(
            engine.backbone, role, prompts, noise, eos_token_ids=[EOS], pad_token_id=EOS, temperature=1.0,
            batch_size=256,
        )  # fmt: skip
        texts = engine.tokenizer.batch_decode([p + n for p, n in found.token_lists()], skip_special_tokens=True)
        means[role] = sum(HalfTheWords().score(texts)) / len(texts)
    assert means[Role.POLICY] > means[Role.REFERENCE] + 0.03, json.dumps(means)
    assert metrics["objective/kl_per_token"] < 1.5


def test_a_backbone_placed_by_device_map_takes_the_same_steps(project: Path) -> None:
    whole, placed = ppo_job(project, "whole"), ppo_job(project, "placed", ppo={"device_map": "auto"})
    for job in (whole, placed):
        ppo.run(job)
    assert result_of(placed)["weights_sha256"] == result_of(whole)["weights_sha256"]

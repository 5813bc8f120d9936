"""Real SFT of a tiny model on two ranks and on one: one launch each, cases in tests/sft_cases.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import tiny_llama
from exported_runs import order, record_run, write_tokens
from lockstep.data.store import IGNORED
from lockstep.exporting.worker import carry_out
from lockstep.foundation.files import read_json
from lockstep.models.weights import named_weights, read_manifest, verify_manifest, weights_sha256
from lockstep.runs.directory import RunDirectory
from sft_cases import LORA, probe_logits

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PROJECT = Path(__file__).resolve().parents[2]
ON_TWO = (
    "sharded repeated other_seed untied checkpointing checkpointing_lora replicas accumulation same_global_batch "
    "resumed resumed_when_done stopped_in_evaluation lora exported perplexity mixed_precision quantised elastic_first"
)
ON_ONE = "resumed same_global_batch perplexity mixed_precision elastic_first elastic_rest"
TWO_RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
CURVES = ("loss", "grad_norm", "eval_loss")

Seen = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sft")
    tiny_llama.write_model(folder / "tied")
    tiny_llama.write_model(folder / "untied", tied=False)
    return folder


@pytest.fixture(scope="module")
def two(folder: Path) -> Seen:
    """Case → what each of two ranks found."""
    return _launch(TWO_RANKS, folder, 2, ON_TWO.split())


@pytest.fixture(scope="module")
def one(folder: Path, two: Seen) -> Seen:
    """Case → what one process found."""
    return _launch([sys.executable], folder, 1, ON_ONE.split())


@pytest.fixture(scope="module")
def two_again(folder: Path, one: Seen) -> Seen:
    """What two ranks made of a run that one began."""
    return _launch(TWO_RANKS, folder, 2, ["elastic_rest"])


def _launch(launcher: list[str], folder: Path, num_ranks: int, cases: list[str]) -> Seen:
    script = PROJECT / "tests" / "sft_cases.py"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{PROJECT / 'src'}{os.pathsep}{PROJECT / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [*launcher, str(script), str(folder), *cases]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    work = folder / f"{num_ranks}-ranks"
    return {
        case: [json.loads((work / f"{case}.{rank}.json").read_text()) for rank in range(num_ranks)] for case in cases
    }


def distance(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The largest difference between two runs' losses, gradient norms and held-out losses; they have the same steps."""
    pairs = [(a["curves"][name], b["curves"][name]) for name in CURVES]
    assert all(set(x) == set(y) for x, y in pairs)
    return max(abs(x[step] - y[step]) for x, y in pairs for step in x)


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The curves of two attempts as one run shows them."""
    return {name: {**first["curves"][name], **second["curves"][name]} for name in first["curves"]}


def test_every_parameter_is_sharded_and_each_rank_holds_half(two: Seen):
    for case in two["sharded"]:
        assert case["num_dtensors"] == case["num_parameters"] > 0
        assert case["local_numel"] * 2 == case["numel"]


def test_the_same_run_twice_ends_with_the_same_bits_and_another_seed_with_others(two: Seen):
    for rank in range(2):
        assert two["repeated"][rank]["sha"] == two["sharded"][rank]["sha"] == two["sharded"][0]["sha"]
        assert two["repeated"][rank]["curves"] == two["sharded"][rank]["curves"]
        assert two["other_seed"][rank]["sha"] != two["sharded"][rank]["sha"]


def test_the_learning_rate_warms_up_and_falls_as_a_cosine(two: Seen):
    rates = list(two["sharded"][0]["curves"]["learning_rate"].values())
    cosine = [0.01 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * k / 4)).item()) for k in range(4)]
    assert rates == pytest.approx([0.0, 0.005, *cosine])


def test_training_lowers_the_loss(two: Seen):
    losses = list(two["same_global_batch"][0]["full"]["curves"]["loss"].values())
    assert losses[-1] < losses[0] - 0.5
    untied = list(two["untied"][0]["curves"]["loss"].values())
    assert untied[-1] < untied[0]


def test_recomputing_activations_changes_no_bit_with_dropout_on(two: Seen):
    case, adapted = two["checkpointing"][0], two["checkpointing_lora"][0]
    assert case["plain"]["sha"] == case["recomputed"]["sha"] != two["sharded"][0]["sha"]
    assert adapted["plain"]["sha"] == adapted["recomputed"]["sha"]


def test_replicas_see_the_losses_of_shards_and_resume_exactly(two: Seen):
    for case in two["replicas"]:
        assert distance(case["whole"], case["reference"]) < 1e-5
        assert case["second"]["sha"] == case["whole"]["sha"]
        assert 0 < distance(case["mixed"], case["reference"]) < 0.1


def test_accumulated_parts_equal_the_whole_batch(two: Seen):
    assert distance(two["accumulation"][0]["whole"], two["accumulation"][0]["parts"]) < 1e-5


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_one_rank_and_two_see_the_same_losses(two: Seen, one: Seen, kind: str):
    assert distance(two["same_global_batch"][0][kind], one["same_global_batch"][0][kind]) < 1e-5


@pytest.mark.parametrize("ranks", ["one", "two"])
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_resumed_run_ends_with_the_bits_of_an_unbroken_one(ranks: str, kind: str, request: pytest.FixtureRequest):
    for case in request.getfixturevalue(ranks)["resumed"]:
        whole, first, second = (case[kind][name] for name in ("whole", "first", "second"))
        assert first["stopped"]
        assert second["start_step"] == 3
        assert second["sha"] == whole["sha"] != first["sha"]
        assert joined(first, second) == whole["curves"]


def test_a_run_killed_before_its_export_trains_no_further_step(two: Seen):
    case = two["resumed_when_done"][0]
    assert case["second"]["start_step"] == 6
    assert case["second"]["sha"] == case["first"]["sha"]
    assert case["held_out"] == case["first"]["curves"]["eval_loss"]["6"]


def test_a_stop_during_evaluation_leaves_it_to_the_next_attempt(two: Seen):
    case = two["stopped_in_evaluation"][0]
    assert case["first"]["stopped"]
    assert "2" not in case["first"]["curves"]["eval_loss"]
    assert case["second"]["start_step"] == 2
    assert case["second"]["sha"] == case["reference"]["sha"]
    assert joined(case["first"], case["second"]) == case["reference"]["curves"]


@pytest.mark.parametrize("ranks", ["one", "two_again"])
def test_another_number_of_ranks_goes_on_when_asked_to(two: Seen, ranks: str, request: pytest.FixtureRequest):
    rest = request.getfixturevalue(ranks)["elastic_rest"][0]
    assert "--elastic" in rest["refused"]
    assert rest["start_step"] == 3
    reference = two["sharded"][0]["curves"]
    for name in ("loss", "grad_norm", "num_tokens", "eval_loss"):
        assert rest["curves"][name] == pytest.approx({s: reference[name][s] for s in rest["curves"][name]}, abs=1e-5)


def test_adapters_are_learned_in_fp32_on_a_sharded_base_and_are_equal_on_all_ranks(two: Seen):
    ranks = two["lora"]
    assert ranks[0]["local_sha"] == ranks[1]["local_sha"]
    for case in ranks:
        assert case["frozen_dtensors"] > 0
        assert case["dtypes"] == ["torch.float32"]
        assert case["lora_b_norms"]
        assert min(case["lora_b_norms"].values()) > 0


def test_an_exported_adapter_loads_with_peft_and_gives_the_same_logits(two: Seen, folder: Path):
    exported = folder / "2-ranks" / "lora_export"
    manifest = read_manifest(exported)
    verify_manifest(exported, manifest)
    assert manifest["kind"] == "adapter"
    assert manifest["weights_sha256"] == two["lora"][0]["local_sha"]
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "tied"), exported)
    assert probe_logits(model) == pytest.approx(two["lora"][0]["logits"], abs=1e-5)
    base = AutoModelForCausalLM.from_pretrained(folder / "tied")
    assert probe_logits(base) != pytest.approx(two["lora"][0]["logits"], abs=1e-3)


def test_an_exported_model_loads_with_transformers_and_gives_the_same_logits(two: Seen, folder: Path):
    exported, seen = folder / "2-ranks" / "export", two["exported"][0]
    model = AutoModelForCausalLM.from_pretrained(exported)
    assert probe_logits(model) == pytest.approx(seen["logits"], abs=1e-5)
    manifest = read_manifest(exported)
    assert manifest == seen["manifest"]
    verify_manifest(exported, manifest)
    assert manifest["weights_sha256"] == seen["weights_sha"] == weights_sha256(named_weights(model))
    assert len(list(exported.glob("model-*-of-*.safetensors"))) > 1
    assert AutoTokenizer.from_pretrained(exported).chat_template == "{{ 1 }}"
    assert two["exported"][1]["manifest"] is None


def export_from_two_ranks(folder: Path, case: str, base: str, **changes: Any) -> Path:
    """Exports the last checkpoint that two ranks wrote in `case`, here, in one process without a group."""
    sections = {"sft": {"num_processes": 2, **changes}}
    run = RunDirectory(folder / "runs" / "sft" / case)
    run.root.mkdir(parents=True)
    run.checkpoints.symlink_to(folder / "2-ranks" / case / "checkpoints")
    record_run(run, tiny_llama.experiment(**sections))
    inputs = {"model": folder / base, "tokens": write_tokens(folder / "tokens" / case, "{{ 2 }}")}
    carry_out(order(run, folder / f"from-{case}", inputs, step="last"))
    return folder / f"from-{case}"


@pytest.mark.parametrize(("case", "base"), [("exported", "tied"), ("untied", "untied")])
def test_shards_of_two_ranks_become_the_model_that_was_trained(two: Seen, folder: Path, case: str, base: str):
    written = export_from_two_ranks(folder, case, base)
    assert read_manifest(written)["weights_sha256"] == two[case][0]["sha"]
    model = AutoModelForCausalLM.from_pretrained(written)
    assert weights_sha256(named_weights(model)) == two[case][0]["sha"]
    assert AutoTokenizer.from_pretrained(written).chat_template == "{{ 2 }}"
    if case == "exported":
        assert probe_logits(model) == pytest.approx(two[case][0]["logits"], abs=1e-5)
        same = {"config.json", "generation_config.json", "tokenizer.json"}
        assert all((written / n).read_bytes() == (folder / "2-ranks" / "export" / n).read_bytes() for n in same)


def test_a_lora_checkpoint_of_two_ranks_becomes_the_adapter_that_was_exported(two: Seen, folder: Path):
    written = export_from_two_ranks(folder, "lora", "tied", peft=LORA)
    assert read_manifest(written)["weights_sha256"] == two["lora"][0]["local_sha"]
    config, exported = (read_json(f / "adapter_config.json") for f in (written, folder / "2-ranks" / "lora_export"))
    assert config == exported | {"base_model_name_or_path": "models/base"}
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "tied"), written)
    assert probe_logits(model) == pytest.approx(two["lora"][0]["logits"], abs=1e-5)


def test_held_out_perplexity_depends_on_neither_ranks_nor_batch_size(two: Seen, one: Seen, folder: Path):
    model = AutoModelForCausalLM.from_pretrained(folder / "tied").eval()
    nll, num_tokens = _loss_of_single_samples(model)
    for case in (*two["perplexity"], *one["perplexity"]):
        for found in case.values():
            assert found["num_tokens"] == num_tokens
            assert found["loss"] == pytest.approx(nll / num_tokens, abs=1e-6)
            assert found["perplexity"] == pytest.approx(float(torch.exp(torch.tensor(nll / num_tokens))), rel=1e-5)


@torch.no_grad()
def _loss_of_single_samples(model: torch.nn.Module) -> tuple[float, int]:
    """Plain Transformers on one sample at a time: (summed loss, supervised tokens) of the held-out rows."""
    nll, num_tokens = 0.0, 0
    for row in tiny_llama.token_store(7, seed=2).dataset:
        start = 0
        for length in row["seq_lengths"]:
            ids = torch.as_tensor(row["input_ids"][start : start + length])
            labels = torch.as_tensor(row["labels"][start : start + length])[1:]
            logits = model(input_ids=ids[None]).logits[0, :-1]
            nll += functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum").item()
            num_tokens += int((labels != IGNORED).sum())
            start += length
    return nll, num_tokens


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_bf16_compute_keeps_fp32_master_weights(ranks: str, two: Seen, request: pytest.FixtureRequest):
    for case in request.getfixturevalue(ranks)["mixed_precision"][0].values():
        assert case["dtypes"] == ["torch.float32"]
    case, full = two["mixed_precision"][0], two["sharded"][0]
    assert 0 < distance(case["fp32"], full) < 0.05
    assert case["bf16"]["sha"] != case["fp32"]["sha"]


@pytest.mark.parametrize("kind", ["load_in_8bit", "load_in_4bit"])
def test_adapters_on_a_quantised_base_learn_and_resume_exactly(two: Seen, kind: str):
    for case in (rank[kind] for rank in two["quantised"]):
        assert case["second"]["start_step"] == 3
        assert case["second"]["sha"] == case["whole"]["sha"]
        assert min(case["lora_b_norms"]) > 0

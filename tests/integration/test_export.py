"""What is exported loads with plain Transformers and PEFT and computes what was trained, or nothing is left of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from exported_runs import order, record_run, write_tokens
from live_tensors import LiveTensors
from lockstep.checkpoints.store import CheckpointStore
from lockstep.exporting.merge import MAX_ERROR, merge_adapter, merge_error, probe
from lockstep.exporting.worker import carry_out, check_room
from lockstep.foundation.errors import DoNotRetryError, LockstepError, UsageError
from lockstep.foundation.files import read_json, write_json
from lockstep.models.adapters import WEIGHTS, add_lora
from lockstep.models.export import export_adapter
from lockstep.models.weights import read_manifest
from lockstep.params.model import LoraParams
from lockstep.runs.directory import RunDirectory
from lockstep.runs.job import Job
from lockstep.stages import ppo
from ppo_cases import ppo_job, tiny_model, write_inputs
from tiny_llama import experiment, write_model

pytestmark = pytest.mark.integration

LORA = LoraParams(r=4, lora_alpha=8)
PARAMS = experiment().model


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A finished PPO run of one step, with a critic of its own, that began from an SFT adapter of another rank."""
    project = tmp_path_factory.mktemp("aligned")
    write_inputs(project)
    small = LoraParams(r=2, lora_alpha=4)
    export_adapter(add_lora(tiny_model(), small, seed=1), project / "sft", base="models/base")
    critic = {"max_steps": 1, "value": {"adapter": True}}
    job = ppo_job(project, "0123456789ab", ppo=critic, sft={"peft": small.model_dump()})
    ppo.run(job)
    record_run(job.directory, job.params)
    return job


def test_a_checkpoint_of_ppo_is_the_peft_folder_that_the_run_ended_with(aligned: Job, tmp_path: Path) -> None:
    carry_out(order(aligned.directory, tmp_path / "result", {}))
    carry_out(order(aligned.directory, tmp_path / "checkpoint", aligned.inputs, step="last"))
    result, checkpoint = (read_manifest(tmp_path / name) for name in ("result", "checkpoint"))
    assert checkpoint == result == read_manifest(aligned.directory.outputs / "weights")
    assert {"value_head.safetensors", "value_adapter/" + WEIGHTS} < set(checkpoint["files"])
    assert read_json(tmp_path / "checkpoint" / "adapter_config.json")["r"] == 2
    base = AutoModelForCausalLM.from_pretrained(aligned.inputs["model"])
    without = probe(base)
    assert not torch.equal(probe(PeftModel.from_pretrained(base, tmp_path / "checkpoint").eval()), without)


def test_a_merged_policy_is_a_plain_model_with_the_adapter_s_logits(aligned: Job, tmp_path: Path) -> None:
    carry_out(order(aligned.directory, tmp_path / "adapter", {}))
    carry_out(order(aligned.directory, tmp_path / "merged", aligned.inputs, merge=True))
    base = AutoModelForCausalLM.from_pretrained(aligned.inputs["model"])
    without = probe(base)
    wanted = probe(PeftModel.from_pretrained(base, tmp_path / "adapter").eval())
    merged = probe(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    torch.testing.assert_close(merged, wanted, rtol=1e-5, atol=1e-5)
    assert (merged - without).abs().max() > 1e-3
    assert "--merge" in (tmp_path / "merged" / "README.md").read_text()


def test_a_full_checkpoint_is_read_a_file_s_worth_at_a_time_and_without_its_optimizer(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", tied=False, num_layers=12)
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        trained = {f"model/{name}": p + 0.01 * torch.randn_like(p) for name, p in model.named_parameters()}
    moments = {f"optim/{name}/exp_avg": torch.zeros_like(p) for name, p in model.named_parameters()}
    run = RunDirectory(tmp_path / "runs" / "sft" / "0123456789ab")
    CheckpointStore(run.checkpoints, run_id=run.root.name).save(2, {**trained, **moments}, per_rank={}, facts={})
    record_run(run, experiment(), status="stopped")
    inputs = {"model": base, "tokens": write_tokens(tmp_path / "tokens", "{{ 1 }}")}
    largest = max(tensor.nbytes for tensor in trained.values())
    with LiveTensors() as seen:
        carry_out(order(run, tmp_path / "out", inputs, step=2))
    assert seen.peak_bytes < 100_000 + 3 * largest < sum(tensor.nbytes for tensor in trained.values()) / 3
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(again[name.removeprefix("model/")], tensor) for name, tensor in trained.items())
    card = (tmp_path / "out" / "README.md").read_text()
    assert "checkpoint after step 2 of 6" in card


def test_a_folder_that_appears_meanwhile_is_left_alone(aligned: Job, tmp_path: Path) -> None:
    dest = tmp_path / "theirs"
    write_json(dest / "theirs.json", {})
    with pytest.raises(UsageError, match="left alone"):
        carry_out(order(aligned.directory, dest, {}))
    assert [path.name for path in tmp_path.rglob("*")] == ["theirs", "theirs.json"]


def test_a_full_disk_and_a_flipped_byte_are_said_and_leave_nothing(aligned: Job, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has .* left"):
        check_room(tmp_path / "out", 1 << 60)
    run = record_run(RunDirectory(tmp_path / "runs" / "ppo" / "0123456789ab"), aligned.params)
    shutil.copytree(aligned.directory.checkpoints, run.checkpoints)
    shard = next(run.checkpoints.glob("step-1/*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DoNotRetryError, match="does not have the hash"):
        carry_out(order(run, tmp_path / "out" / "adapter", aligned.inputs, step=1))
    assert not (tmp_path / "out").exists()


def trained_adapter(folder: Path, base: Path, *, scale: float) -> Path:
    """An adapter whose B is not zero, as after training."""
    export_adapter(add_lora(AutoModelForCausalLM.from_pretrained(base), LORA, seed=3), folder, base="models/base")
    generator = torch.Generator().manual_seed(4)
    tensors = load_file(folder / WEIGHTS)
    filled = {n: scale * torch.randn(t.shape, generator=generator) if "lora_B" in n else t for n, t in tensors.items()}
    save_file(filled, folder / WEIGHTS)
    return folder


def base_in(folder: Path, dtype: torch.dtype, *, tied: bool) -> Path:
    """The tiny Llama with its weights in `dtype`."""
    write_model(folder, tied=tied)
    AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    return folder


def merged(base: Path, adapter: Path, folder: Path) -> tuple[dict[str, Any], float]:
    return merge_adapter(base, adapter, PARAMS, folder, chat_template=None, max_shard_bytes=60_000)


@pytest.mark.parametrize(("dtype", "tied"), [("fp32", True), ("fp32", False), ("bf16", True)])
def test_merging_keeps_dtype_and_ties_and_stays_within_its_bound(dtype: str, tied: bool, tmp_path: Path) -> None:
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    base = base_in(tmp_path / "base", kinds[dtype], tied=tied)
    _, error = merged(base, trained_adapter(tmp_path / "adapter", base, scale=0.1), tmp_path / "merged")
    assert error < MAX_ERROR[dtype] / 5
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert again.dtype == kinds[dtype]
    assert (again.lm_head.weight.data_ptr() == again.model.embed_tokens.weight.data_ptr()) is tied
    assert len(list((tmp_path / "merged").glob("model-*-of-*.safetensors"))) > 1


def test_an_adapter_that_sixteen_bits_swallow_is_refused(tmp_path: Path) -> None:
    base = base_in(tmp_path / "base", torch.bfloat16, tied=True)
    with pytest.raises(LockstepError, match="not what base and adapter together are"):
        merged(base, trained_adapter(tmp_path / "adapter", base, scale=1e-4), tmp_path / "merged")


def test_a_merge_that_did_nothing_or_something_else_is_told_from_one_that_worked() -> None:
    without, wanted = torch.zeros(1, 4, 8), torch.full((1, 4, 8), 0.1)
    assert merge_error(without, wanted, wanted + 1e-5, "fp32") < 1e-3
    for wrong in (without, 2 * wanted, torch.full_like(wanted, torch.nan)):
        with pytest.raises(LockstepError, match="Nothing was kept"):
            merge_error(without, wanted, wrong, "bf16")
    with pytest.raises(LockstepError, match="changes no logit"):
        merge_error(without, without, without, "fp32")


def test_an_untrained_adapter_fails_the_merge_and_leaves_no_folder(aligned: Job, tmp_path: Path) -> None:
    model = add_lora(tiny_model(), LORA, seed=1)
    run = record_run(ppo_job(tmp_path, "fedcba987654").directory, aligned.params)
    export_adapter(model, run.outputs / "weights", base="models/base")
    with pytest.raises(LockstepError, match="changes no logit"):
        carry_out(order(run, tmp_path / "out" / "merged", aligned.inputs, merge=True))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_base_on_disk_that_is_quantised_is_refused(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base")
    write_json(base / "config.json", {**read_json(base / "config.json"), "quantization_config": {"load_in_4bit": True}})
    with pytest.raises(UsageError, match="without --merge"):
        merged(base, tmp_path / "adapter", tmp_path / "merged")

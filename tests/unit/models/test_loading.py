"""What a model folder must hold, which models can be sharded, and the one precision switch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

import tiny_llama
from lockstep.foundation.errors import UsageError
from lockstep.models.adapters import adapter_tensors, add_lora, load_adapter
from lockstep.models.export import export_adapter
from lockstep.models.loading import load_config, load_model, load_tokenizer
from lockstep.models.precision import is_switch_of_transformers, mixed_precision_policy
from lockstep.models.sharding import check_plan
from lockstep.params.model import LoraParams, ModelParams, PrecisionParams

CPU = torch.device("cpu")
PARAMS = ModelParams(source="path:here")
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write_model(tmp_path_factory.mktemp("model"))


def test_a_folder_without_a_model_is_refused_with_the_command_that_fetches_one(tmp_path: Path):
    with pytest.raises(UsageError, match="lockstep fetch"):
        load_model(tmp_path, PARAMS, device=CPU)


def test_missing_weights_are_named_instead_of_made_up(folder: Path, tmp_path: Path):
    deeper = LlamaForCausalLM(LlamaConfig(**{**SMALL, "num_hidden_layers": 3}))
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(tmp_path)
    deeper.config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"layers\.2\."):
        load_model(tmp_path, PARAMS, device=CPU)


def test_pickled_weights_are_not_read(folder: Path, tmp_path: Path):
    LlamaForCausalLM(LlamaConfig(**SMALL)).config.save_pretrained(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UsageError, match="safetensors"):
        load_model(tmp_path, PARAMS, device=CPU)


def test_weights_are_cast_to_the_master_dtype(tmp_path: Path):
    LlamaForCausalLM(LlamaConfig(**SMALL)).bfloat16().save_pretrained(tmp_path)
    assert {p.dtype for p in load_model(tmp_path, PARAMS, device=CPU).parameters()} == {torch.float32}


def test_dropout_replaces_the_one_of_the_configuration(folder: Path):
    assert load_config(folder, PARAMS).attention_dropout == 0.0
    assert load_config(folder, PARAMS, attention_dropout=0.1).attention_dropout == 0.1


def test_a_tokenizer_always_has_a_padding_token(folder: Path):
    assert load_tokenizer(folder).pad_token_id == 0


def test_a_model_whose_layers_no_plan_names_is_refused_by_name():
    check_plan(LlamaConfig(**SMALL))
    with pytest.raises(UsageError, match=r"(?s)GPT2LMHeadModel.*num_processes: 1"):
        check_plan(GPT2Config(n_embd=32, n_layer=4, n_head=2, vocab_size=64, n_positions=16))


def test_gradients_are_summed_in_the_reduce_dtype():
    for reduce, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        precision = PrecisionParams.model_validate({"compute": "bf16", "reduce": reduce})
        policy = mixed_precision_policy(precision)
        assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, dtype)
        assert is_switch_of_transformers(precision) == (reduce == "fp32")
    assert mixed_precision_policy(PrecisionParams()).param_dtype is None


def test_an_adapter_depends_on_its_seed_alone(folder: Path):
    made = []
    for noise, seed in ((1, 5), (2, 5), (1, 6)):
        torch.manual_seed(noise)
        before = torch.get_rng_state()
        made.append(adapter_tensors(add_lora(load_model(folder, PARAMS, device=CPU), LoraParams(r=2), seed=seed)))
        assert torch.equal(torch.get_rng_state(), before)
    name = next(name for name in made[0] if "lora_A" in name)
    assert torch.equal(made[0][name], made[1][name])
    assert not torch.equal(made[0][name], made[2][name])


def test_several_adapters_keep_apart_and_come_back_from_their_folder(folder: Path, tmp_path: Path):
    model = add_lora(load_model(folder, PARAMS, device=CPU), LoraParams(r=2), seed=1, adapter_name="policy")
    model = add_lora(model, LoraParams(r=3), seed=2, adapter_name="value")
    policy, value = (adapter_tensors(model, name) for name in ("policy", "value"))
    assert set(policy) == set(value)
    assert {t.shape[0] for n, t in policy.items() if "lora_A" in n} == {2}
    manifest = export_adapter(model, tmp_path / "value", base="models/base", adapter_name="value")
    loaded = load_adapter(load_model(folder, PARAMS, device=CPU), tmp_path / "value", adapter_name="again")
    again = adapter_tensors(loaded, "again")
    assert all(torch.equal(again[name], value[name]) for name in value)
    assert not any(p.requires_grad for p in loaded.parameters())
    other = load_model(folder, PARAMS, device=CPU)
    same = export_adapter(
        load_adapter(other, tmp_path / "value", adapter_name="x"), tmp_path / "x", base="models/base", adapter_name="x"
    )
    assert same == manifest


def test_an_adapter_of_another_model_is_refused(folder: Path, tmp_path: Path):
    other = LlamaForCausalLM(LlamaConfig(**SMALL))
    export_adapter(add_lora(other, LoraParams(r=2), seed=1), tmp_path, base="elsewhere")
    with pytest.raises(UsageError, match="does not fit"):
        load_adapter(load_model(folder, PARAMS, device=CPU), tmp_path, adapter_name="x")
    with pytest.raises(UsageError, match="no adapter"):
        load_adapter(load_model(folder, PARAMS, device=CPU), tmp_path / "nowhere", adapter_name="x")


def test_an_adapter_that_fits_no_module_is_refused(folder: Path):
    with pytest.raises(UsageError, match="does not fit"):
        add_lora(load_model(folder, PARAMS, device=CPU), LoraParams(target_modules=["no_such_layer"]), seed=1)

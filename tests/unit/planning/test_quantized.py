"""Planned quantised layers against bitsandbytes' real ones: the same bytes stay, on the same modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import pytest
import torch
from transformers import AutoConfig

from lockstep.models.loading import load_model
from lockstep.params.model import ModelParams
from lockstep.planning.build import meta_model
from tiny_llama import write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untied tiny Llama on disk."""
    return write_model(tmp_path_factory.mktemp("model"), tied=False)


@pytest.mark.parametrize(
    "quantization",
    [
        {"load_in_8bit": True},
        {"load_in_4bit": True},
        {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    ],
    ids=["int8", "nf4", "nf4 twice"],
)
def test_what_stays_in_memory_is_what_bitsandbytes_keeps(folder: Path, quantization: dict[str, Any]) -> None:
    params = ModelParams.model_validate({"source": "path:here", "quantization": quantization})
    real = load_model(folder, params, device=torch.device("cpu"))
    planned = meta_model(AutoConfig.from_pretrained(folder), params)
    expected = {name: real_bytes(module) for name, module in real.named_modules() if hasattr(module, "weight")}
    counted = {name: planned_bytes(module) for name, module in planned.named_modules() if hasattr(module, "weight")}
    # Code books (64 to 1,024 bytes) are shared by all layers of a GPU and not counted.
    assert counted == expected


def real_bytes(module: torch.nn.Module) -> int:
    """Bytes of a layer's weight, bias and scales."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters(recurse=False))
    if isinstance(module, bnb.nn.Linear8bitLt):
        scales = module.weight.SCB if module.weight.SCB is not None else module.state.SCB
        return size + scales.numel() * scales.element_size()
    if isinstance(module, bnb.nn.Linear4bit):
        state = module.weight.quant_state
        size += state.absmax.numel() * state.absmax.element_size()
        return size + (state.state2.absmax.numel() * 4 if state.nested else 0)
    return size


def planned_bytes(module: torch.nn.Module) -> int:
    """Bytes of a planned layer's parameters and buffers."""
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return sum(tensor.numel() * tensor.element_size() for tensor in own)


def test_a_packed_weight_knows_how_many_weights_it_holds(folder: Path) -> None:
    params = ModelParams.model_validate({"source": "path:here", "quantization": {"load_in_4bit": True}})
    planned = meta_model(AutoConfig.from_pretrained(folder), params)
    weight = planned.get_submodule("model.layers.0.mlp.up_proj").weight
    assert weight.quant_state.shape.numel() == 64 * 128

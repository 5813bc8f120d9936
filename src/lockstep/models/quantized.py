"""A frozen base in 8 or 4 bits (bitsandbytes), whole on every rank."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PretrainedConfig, PreTrainedModel

from lockstep.models.precision import DTYPES
from lockstep.params.model import ModelParams, QuantizationParams


def bits_and_bytes_config(quantization: QuantizationParams, compute: torch.dtype) -> BitsAndBytesConfig:
    """The parameters as Transformers takes them."""
    return BitsAndBytesConfig(
        load_in_8bit=quantization.load_in_8bit,
        load_in_4bit=quantization.load_in_4bit,
        llm_int8_threshold=quantization.llm_int8_threshold,
        bnb_4bit_quant_type=quantization.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=quantization.bnb_4bit_use_double_quant,
        bnb_4bit_quant_storage=getattr(torch, quantization.bnb_4bit_quant_storage),
        bnb_4bit_compute_dtype=compute,
    )


def load_quantized(
    folder: Path, config: PretrainedConfig, params: ModelParams, device_map: str | dict[str, torch.device]
) -> PreTrainedModel:
    """The frozen, quantised model, placed as `device_map` says; what is not quantised stays in the compute dtype.

    PEFT's `prepare_model_for_kbit_training` is not used: it would turn embeddings and head to fp32 (1.2 GiB at 20B).
    """
    assert params.quantization is not None
    compute = DTYPES[params.precision.compute]
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=compute,
        device_map=device_map,
        quantization_config=bits_and_bytes_config(params.quantization, compute),
        **options,
    )
    model.requires_grad_(False)
    keep_differentiable(model)
    # It says at every single matrix product that int8 casts its inputs, which is how int8 works.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    return model


def keep_differentiable(model: PreTrainedModel) -> None:
    """bitsandbytes repacks 4-bit weights at the first forward in evaluation mode on CPUs with avx512_bf16.

    The repacked kernel has no backward, so adapters would silently stop learning from then on.
    """
    for module in model.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False

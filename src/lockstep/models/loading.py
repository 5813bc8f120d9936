"""Weights from a local model folder: whole, sharded over ranks, or quantised. safetensors only, no remote code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from lockstep.foundation.errors import UsageError
from lockstep.models.precision import DTYPES, is_switch_of_transformers
from lockstep.models.quantized import load_quantized
from lockstep.models.sharded_4bit import load_sharded_4bit
from lockstep.models.sharding import Layout, check_plan, one_rank_mesh, shard, sharding_class
from lockstep.params.model import ModelParams

_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def load_config(folder: Path, params: ModelParams, *, attention_dropout: float | None = None) -> PretrainedConfig:
    """The model's configuration with the experiment's changes.

    Raises UsageError when the folder holds no model, or the architecture knows no attention dropout.
    """
    if not (folder / "config.json").exists():
        raise UsageError(f"There is no model in {folder} (no config.json).\nFetch it with: ./lockstep fetch")
    config = AutoConfig.from_pretrained(folder, attn_implementation=params.attn_implementation, **_LOCAL)
    config.use_cache = False
    if attention_dropout is not None:
        if not hasattr(config, "attention_dropout"):
            raise UsageError(f"{config.model_type} has no attention_dropout; write sft.attention_dropout: null.")
        config.attention_dropout = attention_dropout
    return config


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder; a model without a padding token pads with its end-of-sequence token."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, **_LOCAL)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(
    folder: Path,
    params: ModelParams,
    *,
    device: torch.device,
    layout: Layout | None = None,
    attention_dropout: float | None = None,
    device_map: str | None = None,
) -> PreTrainedModel:
    """A causal language model from `folder`, in evaluation mode.

    Without quantisation, each weight is read in its on-disk dtype and cast to `master_dtype`: over several ranks of
    `layout`, each rank reads and casts its own shard only (collective). A quantised base lies whole on every rank,
    unless its 4-bit weights are stored in a floating-point dtype, which can be sharded.
    `device_map` ("auto", …) splits a whole or quantised model layer by layer over the devices that one process sees.
    Raises UsageError when weights are missing, or the model has no plan to shard it by.
    """
    transformers_logging.disable_progress_bar()
    config = load_config(folder, params, attention_dropout=attention_dropout)
    layout = layout or Layout(1)
    if params.quantization is not None:
        if layout.num_ranks > 1 and params.quantization.is_shardable:
            return load_sharded_4bit(folder, config, params, layout, device)
        return load_quantized(folder, config, params, device_map or {"": device})
    if layout.num_ranks > 1:
        return _load_sharded(folder, config, params, layout)
    return _load_whole(folder, config, params, layout, device, device_map)


def _load_sharded(folder: Path, config: PretrainedConfig, params: ModelParams, layout: Layout) -> PreTrainedModel:
    check_plan(config)
    model_class: type[PreTrainedModel] = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not is_switch_of_transformers(params.precision):
        model_class = sharding_class(model_class, params.precision)
    return _from_pretrained(
        model_class, folder, config, params, distributed_config=layout.distributed_config(params.precision)
    )


def _load_whole(
    folder: Path,
    config: PretrainedConfig,
    params: ModelParams,
    layout: Layout,
    device: torch.device,
    device_map: str | None,
) -> PreTrainedModel:
    model = _from_pretrained(AutoModelForCausalLM, folder, config, params, device_map=device_map)
    if device_map is None:
        model.to(device)
    if params.precision.compute != params.master_dtype:
        shard(model, one_rank_mesh(device.type), layout, params.precision)
    return model


def _from_pretrained(
    model_class: Any, folder: Path, config: PretrainedConfig, params: ModelParams, **options: Any
) -> PreTrainedModel:
    try:
        model, report = model_class.from_pretrained(
            folder,
            config=config,
            dtype=DTYPES[params.master_dtype],
            use_safetensors=True,
            output_loading_info=True,
            **_LOCAL,
            **options,
        )
    except OSError as error:
        raise UsageError(f"The weights in {folder} cannot be read: {error}") from None
    if missing := sorted(report["missing_keys"]):
        raise UsageError(f"{folder} lacks {len(missing)} weights of {type(model).__name__}, e.g. {missing[0]}.")
    return model

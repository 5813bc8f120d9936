"""From trained weights to folders that plain `from_pretrained` reads, without one host holding a whole model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from peft import PeftModel
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from lockstep.foundation.files import read_json, write_json
from lockstep.models.adapters import WEIGHTS, adapter_config, adapter_tensors
from lockstep.models.model_folder import MAX_SHARD_BYTES, ModelFolder
from lockstep.models.weights import named_weights, weights_sha256, write_manifest, write_tensors


def export_model(
    model: PreTrainedModel,
    base: Path,
    folder: Path,
    *,
    chat_template: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> dict[str, Any] | None:
    """Writes `model` to `folder` as safetensors files with index, config, tokenizer and generation config. Collective.

    Every rank gathers one tensor at a time; rank 0 writes, and holds at most `max_shard_bytes` (and one tensor).
    What is not weights comes from the `base` folder, but for the chat template, which is the one given. Returns the
    manifest on rank 0, None elsewhere. An OSError of rank 0 (a full disk) reaches all ranks, with nothing left behind.
    """
    writes = not dist.is_initialized() or dist.get_rank() == 0
    writer = ModelFolder(folder, max_shard_bytes)
    error: OSError | None = None
    for name, tensor in named_weights(model):
        error = error or _tried(writes, partial(writer.add, name, tensor))
    error = error or _tried(writes, lambda: writer.finish(model_config(model, base), base, chat_template))
    if writes:
        writer.discard()
    _raise_together(error)
    return writer.write_manifest() if writes else None


def export_adapter(model: PeftModel, folder: Path, *, base: str, adapter_name: str = "default") -> dict[str, Any]:
    """Writes a PEFT folder that `PeftModel.from_pretrained` reads, and its manifest; adapters are whole on each rank.

    `base` is recorded as the base model's name; give one that does not depend on the machine. Rank 0 calls it alone.
    """
    tensors = adapter_tensors(model, adapter_name)
    write_tensors(tensors, folder / WEIGHTS)
    write_json(folder / "adapter_config.json", adapter_config(model, adapter_name, base))
    return write_manifest(folder, folder, "adapter", weights_sha256(tensors.items()))


def model_config(model: PreTrainedModel, base: Path) -> dict[str, Any]:
    """The base's configuration with the dtype of the new weights; what only this training changed stays out.

    The class is looked up, because that of a sharded model is FSDP2's, which no other program knows.
    """
    config: dict[str, Any] = read_json(base / "config.json")
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING[type(model.config)].__name__
    return {**config, "architectures": [architecture], "dtype": str(model.dtype).removeprefix("torch.")}


def _tried(writes: bool, action: Callable[[], None]) -> OSError | None:
    """Runs `action` on the writing rank; an error is kept, so that all ranks go on to the next collective."""
    if not writes:
        return None
    try:
        action()
    except OSError as error:
        return error
    return None


def _raise_together(error: OSError | None) -> None:
    if not dist.is_initialized():
        errors = [None if error is None else str(error)]
    else:
        errors = [None] * dist.get_world_size()
        dist.all_gather_object(errors, None if error is None else str(error))
    if message := next((e for e in errors if e), None):
        raise OSError(f"The model could not be exported: {message}") from error

"""From trained weights to folders that plain `from_pretrained` reads, without one host holding a whole model."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from lockstep.foundation.files import read_json, write_atomic, write_json
from lockstep.models.adapters import WEIGHTS, adapter_config, adapter_tensors
from lockstep.models.weights import WeightsDigest, named_weights, weights_sha256, write_manifest

_MAX_SHARD_BYTES = 4 << 30
_FROM_BASE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


def export_model(
    model: PreTrainedModel,
    base: Path,
    folder: Path,
    *,
    chat_template: str | None = None,
    max_shard_bytes: int = _MAX_SHARD_BYTES,
) -> dict[str, Any] | None:
    """Writes `model` to `folder` as safetensors files with index, config, tokenizer and generation config. Collective.

    Every rank gathers one tensor at a time; rank 0 writes, and holds at most `max_shard_bytes` (and one tensor).
    What is not weights comes from the `base` folder, but for the chat template, which is the one given. Returns the
    manifest on rank 0, None elsewhere. An OSError of rank 0 (a full disk) reaches all ranks, with nothing left behind.
    """
    writes = not dist.is_initialized() or dist.get_rank() == 0
    staging = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp")
    writer = _ShardWriter(staging, max_shard_bytes)
    error: OSError | None = None
    for name, tensor in named_weights(model):
        error = error or _tried(writes, partial(writer.add, name, tensor))
    error = error or _tried(writes, partial(_finish, model, base, staging, folder, writer, chat_template))
    shutil.rmtree(staging, ignore_errors=True)
    _raise_together(error)
    return write_manifest(folder, folder, "model", writer.digest.hexdigest()) if writes else None


def export_adapter(model: PeftModel, folder: Path, *, base: str, adapter_name: str = "default") -> dict[str, Any]:
    """Writes a PEFT folder that `PeftModel.from_pretrained` reads, and its manifest; adapters are whole on each rank.

    `base` is recorded as the base model's name; give one that does not depend on the machine. Rank 0 calls it alone.
    """
    tensors = adapter_tensors(model, adapter_name)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    write_json(folder / "adapter_config.json", adapter_config(model, adapter_name, base))
    return write_manifest(folder, folder, "adapter", weights_sha256(tensors.items()))


class _ShardWriter:
    """Fills safetensors files one after another and remembers which tensor lies where."""

    def __init__(self, folder: Path, max_shard_bytes: int) -> None:
        self.digest = WeightsDigest()
        self._folder = folder
        self._max_bytes = max_shard_bytes
        self._pending: dict[str, Tensor] = {}
        self._pending_bytes = 0
        self._files: list[list[str]] = []
        self._total_bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        num_bytes = tensor.numel() * tensor.element_size()
        if self._pending and self._pending_bytes + num_bytes > self._max_bytes:
            self._flush()
        self.digest.add(name, tensor)
        self._pending[name] = tensor.contiguous()
        self._pending_bytes += num_bytes
        self._total_bytes += num_bytes

    def finish(self) -> None:
        """Writes what is pending, gives the files their final names and writes the index where there are several."""
        self._flush()
        if len(self._files) == 1:
            self._part(0).rename(self._folder / "model.safetensors")
            return
        weight_map = {}
        for number, names in enumerate(self._files):
            final = f"model-{number + 1:05d}-of-{len(self._files):05d}.safetensors"
            self._part(number).rename(self._folder / final)
            weight_map.update(dict.fromkeys(names, final))
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        write_json(self._folder / "model.safetensors.index.json", index)

    def _flush(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        save_file(self._pending, self._part(len(self._files)), metadata={"format": "pt"})
        self._files.append(sorted(self._pending))
        self._pending, self._pending_bytes = {}, 0

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number:05d}.safetensors"


def _finish(
    model: PreTrainedModel, base: Path, staging: Path, folder: Path, writer: _ShardWriter, chat_template: str | None
) -> None:
    writer.finish()
    write_json(staging / "config.json", _config(model, base))
    for name in _FROM_BASE:
        if (base / name).is_file():
            shutil.copyfile(base / name, staging / name)
    if chat_template is not None:
        write_atomic(staging / "chat_template.jinja", chat_template)
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)


def _config(model: PreTrainedModel, base: Path) -> dict[str, Any]:
    """The base's configuration with the dtype of the new weights; what only this training changed stays out."""
    config: dict[str, Any] = read_json(base / "config.json")
    return {**config, "architectures": [type(model).__name__], "dtype": str(model.dtype).removeprefix("torch.")}


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

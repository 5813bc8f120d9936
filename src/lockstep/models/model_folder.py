"""Whole tensors, one after another, into a folder that plain `from_pretrained` reads; and out of one again."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import read_json, write_atomic, write_json
from lockstep.models.weights import WeightsDigest, write_manifest, write_tensors

MAX_SHARD_BYTES = 4 << 30
_INDEX = "model.safetensors.index.json"
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


class ModelFolder:
    """A folder in the making, under a temporary name: `add` every weight, then `finish`. Holds one shard in memory."""

    def __init__(self, folder: Path, max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
        self.folder = folder
        self.digest = WeightsDigest()
        self._staging = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp")
        self._max_bytes = max_shard_bytes
        self._pending: dict[str, Tensor] = {}
        self._pending_bytes = 0
        self._files: list[list[str]] = []
        self._total_bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Takes one whole CPU tensor; writes a file when the next one would pass the size limit."""
        num_bytes = tensor.numel() * tensor.element_size()
        if self._pending and self._pending_bytes + num_bytes > self._max_bytes:
            self._flush()
        self.digest.add(name, tensor)
        self._pending[name] = tensor.contiguous()
        self._pending_bytes += num_bytes
        self._total_bytes += num_bytes

    def finish(self, config: dict[str, Any], base: Path, chat_template: str | None = None) -> None:
        """Writes what is pending and the index, takes tokenizer and generation config from `base`, and renames.

        `chat_template` takes the place of the base's, if given.
        """
        self._finish_weights()
        write_json(self._staging / "config.json", config)
        for name in _FROM_BASE:
            if (base / name).is_file():
                shutil.copyfile(base / name, self._staging / name)
        if chat_template is not None:
            write_atomic(self._staging / "chat_template.jinja", chat_template)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._staging.rename(self.folder)

    def discard(self) -> None:
        """Removes what an unfinished folder has left; does nothing after `finish`."""
        shutil.rmtree(self._staging, ignore_errors=True)

    def write_manifest(self) -> dict[str, Any]:
        """Writes the finished folder's manifest and returns it."""
        return write_manifest(self.folder, self.folder, "model", self.digest.hexdigest())

    def _finish_weights(self) -> None:
        self._flush()
        if len(self._files) == 1:
            self._part(0).rename(self._staging / "model.safetensors")
            return
        weight_map = {}
        for number, names in enumerate(self._files):
            final = f"model-{number + 1:05d}-of-{len(self._files):05d}.safetensors"
            self._part(number).rename(self._staging / final)
            weight_map.update(dict.fromkeys(names, final))
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        write_json(self._staging / _INDEX, index)

    def _flush(self) -> None:
        write_tensors(self._pending, self._part(len(self._files)))
        self._files.append(sorted(self._pending))
        self._pending, self._pending_bytes = {}, 0

    def _part(self, number: int) -> Path:
        return self._staging / f"part-{number:05d}.safetensors"


def write_model_folder(
    weights: Iterable[tuple[str, Tensor]],
    config: dict[str, Any],
    base: Path,
    folder: Path,
    *,
    chat_template: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> dict[str, Any]:
    """Writes the folder in one process and returns its manifest; at most one shard of `weights` is held at a time."""
    writer = ModelFolder(folder, max_shard_bytes)
    try:
        for name, tensor in weights:
            writer.add(name, tensor)
        writer.finish(config, base, chat_template)
    finally:
        writer.discard()
    return writer.write_manifest()


class WeightFiles:
    """The safetensors files of a model folder, by weight; one weight is read at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = folder / _INDEX
        self._file_of: dict[str, str] = dict(read_json(index)["weight_map"]) if index.exists() else {}

    def read(self, name: str) -> Tensor:
        """One whole weight on the CPU, in its on-disk dtype. Raises UsageError where it is not there."""
        path = self._folder / self._file_of.get(name, "model.safetensors")
        try:
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(name)
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(f"{path} has no readable weight '{name}': {error}") from None

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Every (name, weight), file by file."""
        for path in sorted(set(self._file_of.values())) or ["model.safetensors"]:
            with safe_open(self._folder / path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    yield name, file.get_tensor(name)

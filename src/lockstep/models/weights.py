"""The identity of weights: one hash over names, dtypes, shapes and bytes; and the manifest of their files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import read_json, sha256_file, tree_files, write_json

MANIFEST = "manifest.json"


@dataclass
class WeightsDigest:
    """Collects tensors in any order; equal for equal sets of (name, dtype, shape, bytes)."""

    _lines: list[str] = field(default_factory=list)

    def add(self, name: str, tensor: Tensor) -> None:
        """Takes one whole tensor (any device, any shape)."""
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        content = hashlib.sha256(flat.numpy().data).hexdigest()
        self._lines.append(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0{content}\n")

    def hexdigest(self) -> str:
        """sha256 over the sorted lines of name, dtype, shape and sha256 of the bytes."""
        return hashlib.sha256("".join(sorted(self._lines)).encode()).hexdigest()


def weights_sha256(named_tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The identity of a set of whole tensors, independent of their order; reads one at a time."""
    digest = WeightsDigest()
    for name, tensor in named_tensors:
        digest.add(name, tensor)
    return digest.hexdigest()


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, whole tensor on the CPU) of every parameter and saved buffer; tied weights once. Collective if sharded.

    At most one whole tensor is held at a time.
    """
    names = set(model.state_dict().keys())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in names:
            yield name, whole(tensor)


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on the CPU; gathers a DTensor (collective)."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes a safetensors file that whoever may read its neighbours may read; `save_file` alone makes it private."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(mode)


def write_manifest(folder: Path, target: Path, kind: Literal["adapter", "model"], weights: str) -> dict[str, Any]:
    """Writes `target`/manifest.json about the files in `folder` (an earlier manifest there does not count)."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in tree_files(folder)
        if path.name != MANIFEST
    }
    manifest = {"kind": kind, "files": files, "weights_sha256": weights}
    write_json(target / MANIFEST, manifest)
    return manifest


def verify_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Checks that `folder` holds exactly what the manifest names; reads every byte.

    Raises UsageError naming the first file that is missing or differs.
    """
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise UsageError(f"{path} is named in the manifest and is not there.")
        if path.stat().st_size != expected["bytes"] or sha256_file(path) != expected["sha256"]:
            raise UsageError(f"{path} is not the file that the manifest names: its content differs.")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in `folder`. Raises UsageError when there is none."""
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} has no {MANIFEST}, so its weights cannot be verified.")
    return dict(read_json(folder / MANIFEST))

"""This rank's part of each tensor: where it lies in the whole, its values, and a copy that training can't change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from lockstep.checkpoints.manifest import TensorEntry


@dataclass(frozen=True)
class Piece:
    """One rank's part of one tensor."""

    shape: torch.Size
    """Of the whole tensor."""
    offsets: torch.Size
    """Where the part begins, per dimension."""
    local: Tensor
    """The values, shape of the part."""
    replicated: bool
    """Every rank holds the whole tensor (a plain tensor), and all must hold the same."""
    first_replica: bool
    """False where another rank holds the same part and comes first; summing these counts every byte once."""

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.local.numel() * self.local.element_size()


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float32` → `float32`."""
    return str(dtype).removeprefix("torch.")


def dtype_from_name(name: str) -> torch.dtype:
    """`float32` → `torch.float32`. Raises ValueError for anything that isn't a torch dtype."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {name!r}")
    return dtype


def pieces_of(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Piece]:
    """This rank's part of every tensor, without copying. A plain tensor counts as the same on every rank."""
    return {name: _piece(tensor, rank) for name, tensor in tensors.items()}


def holdings(pieces: Mapping[str, Piece]) -> dict[str, TensorEntry]:
    """What the whole tensors are, for the manifest."""
    return {name: TensorEntry(dtype_name(p.local.dtype), tuple(p.shape)) for name, p in pieces.items()}


def replica_digests(pieces: Mapping[str, Piece]) -> dict[str, str]:
    """A hash of each tensor that every rank holds whole: what differs there would be made equal by a resume."""
    return {name: _digest(piece.local) for name, piece in pieces.items() if piece.replicated}


class Staging:
    """Host buffers that hold a copy of the state while it is written; kept and filled again by the next save."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def new_bytes(self, pieces: Mapping[str, Piece]) -> int:
        """Bytes of host memory that `copy` would ask for beyond what it already holds."""
        return sum(piece.nbytes for name, piece in pieces.items() if not self._holds(name, piece.local))

    def copy(self, pieces: Mapping[str, Piece]) -> dict[str, Piece]:
        """The same pieces with values of their own in host memory; returns when the copy is complete."""
        self._buffers = {name: self._buffer(name, piece.local) for name, piece in pieces.items()}
        for name, piece in pieces.items():
            self._buffers[name].copy_(piece.local)
        return {name: replace(piece, local=self._buffers[name]) for name, piece in pieces.items()}

    def _holds(self, name: str, values: Tensor) -> bool:
        held = self._buffers.get(name)
        return held is not None and held.shape == values.shape and held.dtype == values.dtype

    def _buffer(self, name: str, values: Tensor) -> Tensor:
        if self._holds(name, values):
            return self._buffers[name]
        return torch.empty(values.shape, dtype=values.dtype, device="cpu")


def _piece(tensor: Tensor, rank: int) -> Piece:
    if not isinstance(tensor, DTensor):
        origin = torch.Size([0] * tensor.dim())
        return Piece(tensor.shape, origin, tensor.detach(), replicated=True, first_replica=rank == 0)
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError("a tensor with pending reductions (Partial) can't be saved; reduce it first")
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local = tensor.to_local().detach()
    return Piece(tensor.shape, torch.Size(offsets), local, replicated=False, first_replica=_first_replica(tensor))


def _first_replica(tensor: DTensor) -> bool:
    coordinate: list[int] = list(tensor.device_mesh.get_coordinate() or [])
    return all(at == 0 for at, kind in zip(coordinate, tensor.placements, strict=False) if kind.is_replicate())


def _digest(values: Tensor) -> str:
    raw: Any = values.cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(raw).hexdigest()[:32]

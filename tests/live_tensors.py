"""How many bytes of tensors are alive: a dispatch mode that sees every storage come and go."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Counts the storages made while it is active: live bytes, their peak, and the largest single one."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self.largest_bytes = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {_key(leaf) for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)}
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and _key(leaf) not in known:
                self._add(leaf)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = _key(tensor)
        if key in self._seen or tensor.is_meta:  # a meta tensor has a size and no memory
            return
        self._seen.add(key)
        size = storage.nbytes()
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.largest_bytes = max(self.largest_bytes, size)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live_bytes -= size


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def storage_bytes(tensors: list[Tensor]) -> int:
    """Bytes of the storages behind `tensors`, each once."""
    return sum({_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def all_live_tensors() -> list[Tensor]:
    """Every tensor that Python can reach now."""
    import gc

    gc.collect()
    return [found for found in gc.get_objects() if type(found) in (Tensor, torch.nn.Parameter)]

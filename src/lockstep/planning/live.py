"""Live tensor bytes of a program, by what they are for and by the moment in which they peak. Real or fake tensors.

Every storage that an operation makes is one entry in a log of births, resizings and deaths. What a storage was for is
often known only later (a temporary of the backward pass turns out to be a gradient), so kinds are settled after the run
and the log is replayed then. Memory inside a kernel is not seen; a planner adds what it knows of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._guards import active_fake_mode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lockstep.planning.results import Kind

CUDA_BLOCK_BYTES = 512
"""The CUDA caching allocator hands out multiples of this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""


@dataclass(frozen=True)
class Moment:
    """A stretch of the program: a phase, and the part of it (embedding, a layer, the head) that is running."""

    phase: str
    part: str = ""


Bytes = dict[Kind, int]
"""Live bytes by kind at one point in time."""


@dataclass(eq=False)
class LiveMemory(TorchDispatchMode):
    """Logs storages while it is active. `block_bytes` rounds each up, as the device's allocator does."""

    block_bytes: int = 1
    region: Kind = Kind.ACTIVATIONS
    """What new storages are for until somebody says better."""
    _kinds: list[Kind] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _log: list[tuple[int, int] | Moment | None] = field(default_factory=list)
    _serials: dict[int, int] = field(default_factory=dict)
    _references: dict[int, weakref.ref[torch.UntypedStorage]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        self._fake_mode: Any = None

    def at(self, moment: Moment | None) -> None:
        """From here on the program is in `moment`; None: in no moment that anybody asks about."""
        self._log.append(moment)

    def mark(self, kind: Kind, values: Any) -> None:
        """The storages of all tensors in `values` (any nesting) are, and always were, of this kind."""
        for tensor in tree_leaves(values):
            for storage in _storages(tensor):
                self._kinds[self._serial(storage, kind)] = kind

    def mark_new(self, kind: Kind, values: Any) -> None:
        """As `mark`, for those storages alone that were never seen before."""
        for tensor in tree_leaves(values):
            for storage in _storages(tensor):
                self._serial(storage, kind)

    @contextmanager
    def within(self, kind: Kind) -> Iterator[None]:
        """New storages are of this kind inside."""
        before, self.region = self.region, kind
        try:
            yield
        finally:
            self.region = before

    def peaks(self) -> dict[Moment, Bytes]:
        """The live bytes by kind at the point of each moment where their sum was largest."""
        live = dict.fromkeys(Kind, 0)
        total, moment = 0, None
        best: dict[Moment, int] = {}
        peaks: dict[Moment, Bytes] = {}
        for entry in self._log:
            if isinstance(entry, tuple):
                serial, change = entry
                live[self._kinds[serial]] += change
                total += change
            else:
                moment = entry
            if moment is not None and total > best.get(moment, -1):
                best[moment], peaks[moment] = total, dict(live)
        return peaks

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were alive at one time, whatever the moment."""
        total = peak = 0
        for entry in self._log:
            total += entry[1] if isinstance(entry, tuple) else 0
            peak = max(peak, total)
        return peak

    @property
    def live_bytes(self) -> int:
        """Bytes alive now."""
        return sum(entry[1] for entry in self._log if isinstance(entry, tuple))

    def __enter__(self) -> LiveMemory:
        self._fake_mode = active_fake_mode()
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = _logging_resize(self, self._resize)  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # DTensor first turns this into operations on local tensors, which come back here
        if func is torch.ops._c10d_functional.wait_tensor.default and active_fake_mode() is not None:
            result = args[0]  # the fake kernel would make a new tensor, the real one does not
        else:
            result = func(*args, **(kwargs or {}))
        # DTensor works out output shapes on whole-size tensors in a fake mode of its own: those are not ours.
        if active_fake_mode() is self._fake_mode:
            self.mark_new(self.region, result)
            if buffers := _COLLECTIVE_BUFFERS.get(func):
                self.mark(Kind.COMMUNICATION, buffers(args))
        return result

    def _serial(self, storage: torch.UntypedStorage, kind: Kind) -> int:
        key = id(storage)
        if key not in self._serials:
            serial = self._serials[key] = len(self._kinds)
            self._kinds.append(kind)
            self._sizes.append(0)
            self._references[key] = weakref.ref(storage, lambda _, key=key: self._died(key))  # type: ignore[misc]
            self._resized(storage)
            return serial
        return self._serials[key]

    def _resized(self, storage: torch.UntypedStorage) -> None:
        serial = self._serials.get(id(storage))
        if serial is None:
            return
        size = -(-storage.nbytes() // self.block_bytes) * self.block_bytes
        if change := size - self._sizes[serial]:
            self._sizes[serial] = size
            self._log.append((serial, change))

    def _died(self, key: int) -> None:
        serial = self._serials.pop(key)
        del self._references[key]
        if self._sizes[serial]:
            self._log.append((serial, -self._sizes[serial]))
            self._sizes[serial] = 0


_COLLECTIVE_BUFFERS: dict[Any, Callable[[Any], Any]] = {
    torch.ops.c10d._allgather_base_.default: lambda args: args[0],
    torch.ops.c10d._reduce_scatter_base_.default: lambda args: args[1],
}
"""The buffer that a collective needs beside what it is for: what is gathered into, and what is scattered from."""


def _logging_resize(live: LiveMemory, resize: Callable[..., Any]) -> Callable[..., Any]:
    def resize_and_log(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        live._resized(storage)
        return result

    return resize_and_log


def _storages(value: Any) -> list[torch.UntypedStorage]:
    if not isinstance(value, Tensor):
        return []
    if isinstance(value, DTensor):
        return _storages(value._local_tensor)
    return [value.untyped_storage()]

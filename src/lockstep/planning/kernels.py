"""TRL's tiled output head as it runs on CUDA, for fake tensors on the CPU.

There Triton folds each tile of the logits in place, and the matrix product itself accumulates in fp32. The fallback for
devices without Triton, which fake CPU tensors would take, copies tiles and weights to fp32 instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trl.kernels import chunked_logprob

_IN_PLACE = ("_forward_tile", "_backward_tile", "_addmm_fp32")


@contextmanager
def cuda_head() -> Iterator[None]:
    """Makes what happens in place on CUDA allocate nothing here. Changes TRL's module while active."""
    before = {name: getattr(chunked_logprob, name) for name in _IN_PLACE}
    for name in _IN_PLACE:
        setattr(chunked_logprob, name, _nothing)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(chunked_logprob, name, function)


def _nothing(*_: Any, **__: Any) -> None:
    """Allocates nothing and computes nothing."""

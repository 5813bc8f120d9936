"""Same inputs, same bits: seeds per rank, deterministic kernels, no silent change of fp32 precision."""

from __future__ import annotations

import os
import random

import numpy as np
import torch

_MASK_32 = (1 << 32) - 1


def make_deterministic() -> None:
    """Lets torch choose deterministic kernels only, and fp32 mean fp32 (no TF32). Call before the first CUDA kernel.

    Raises later, from torch, where an operation has no deterministic form.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # A debugging aid that comes with the line above and writes every fresh tensor once more.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")


def derived_seed(seed: int, *path: int | str) -> int:
    """A seed below 2**32 for one purpose, e.g. `derived_seed(seed, "dropout", rank)`; other paths give other seeds."""
    words = [seed & _MASK_32]
    for part in path:
        words.extend(part.encode() if isinstance(part, str) else [part & _MASK_32])
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def seed_global_generators(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's global generators (dropout draws from them; data never does)."""
    random.seed(seed)
    np.random.seed(seed & _MASK_32)
    torch.manual_seed(seed)

"""What the launcher decides of the workers' environment; engines add the fixed and the allow-listed rest."""

from __future__ import annotations

import os


def num_threads(num_processes: int) -> int:
    """CPU threads per worker: the cores this process may use, shared out evenly."""
    return max(1, len(os.sched_getaffinity(0)) // num_processes)


def worker_variables(threads_per_process: int) -> dict[str, str]:
    """Thread counts, and the switches that make CUDA libraries repeat themselves."""
    threads = str(threads_per_process)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore::DeprecationWarning,ignore::FutureWarning",
    }

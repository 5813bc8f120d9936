"""The worker command of one attempt, the same text for every engine."""

from __future__ import annotations

from pathlib import Path


def worker_command(stage: str, run_dir: Path, attempt: int, num_processes: int, timeout_s: int) -> list[str]:
    """`python -m lockstep.stages.<stage>`, under torchrun where there is more than one process.

    The rendezvous is a c10d store on a free port of this node, so two runs beside each other never meet.
    """
    module = f"lockstep.stages.{stage}"
    arguments = ["--run-dir", str(run_dir), "--attempt", str(attempt)]
    if num_processes == 1:
        return ["python", "-m", module, *arguments]
    return [
        "python",
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={num_processes}",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
        f"--rdzv-conf=timeout={timeout_s}",
        "--local-addr=127.0.0.1",
        "--module",
        module,
        *arguments,
    ]

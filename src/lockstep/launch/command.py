"""The worker command of one attempt, the same text for every engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rendezvous:
    """Where the launchers of one attempt meet: one per node, a c10d store that one of them hosts."""

    endpoint: str = "127.0.0.1:0"
    """`host:port` of the store; port 0 lets a single launcher take a free one, so that two runs never meet."""
    local_addr: str = "127.0.0.1"
    """This node's address, as the other nodes reach it."""
    num_nodes: int = 1
    hosts_store: bool = True
    rdzv_id: str = "none"


def worker_command(
    stage: str, run_dir: Path, attempt: int, num_processes: int, timeout_s: int, rendezvous: Rendezvous | None = None
) -> list[str]:
    """`python -m lockstep.stages.<stage>`, under torchrun where there is more than one process.

    `num_processes` is per node. Without a `rendezvous` the launcher meets nobody: one node, a free port.
    """
    module = f"lockstep.stages.{stage}"
    arguments = ["--run-dir", str(run_dir), "--attempt", str(attempt)]
    meet = rendezvous or Rendezvous()
    if num_processes * meet.num_nodes == 1:
        return ["python", "-m", module, *arguments]
    # Who hosts the store is said, not guessed from host names, which often differ between a node's networks.
    hosting = "" if meet.num_nodes == 1 else f",is_host={'true' if meet.hosts_store else 'false'}"
    return [
        "python",
        "-m",
        "torch.distributed.run",
        f"--nnodes={meet.num_nodes}",
        f"--nproc-per-node={num_processes}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={meet.endpoint}",
        f"--rdzv-id={meet.rdzv_id}",
        f"--rdzv-conf=timeout={timeout_s}{hosting}",
        f"--local-addr={meet.local_addr}",
        "--module",
        module,
        *arguments,
    ]

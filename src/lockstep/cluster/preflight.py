"""One node's check before the costly start, inside the image: does it import, see its GPUs, reach the others?

The verdict is a file, `control/preflight.<attempt>/<node>`: `ok`, `bad REASON` (keep away from this node), `unsure
REASON` (the cause may be another node's), `refuse REASON` (a lock does not match; no node can cure that).
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import timedelta
from pathlib import Path

from lockstep.cluster.meeting import Meeting, MissingNodesError, read_nodes
from lockstep.foundation.errors import LockstepError
from lockstep.foundation.files import write_atomic
from lockstep.params.stages import stage_spec
from lockstep.runs.job import Job

_MEET_S = 40.0
_COLLECTIVE_S = 15.0
_MAX_CLOCK_S = 5.0
_ALL_REDUCE_ELEMENTS = 1 << 20


class BadNodeError(LockstepError):
    """This node cannot do the work, whatever the others do."""


def main() -> int:
    """Checks this node, leaves its verdict, and exits with 0 when that is ok."""
    parser = argparse.ArgumentParser(prog="lockstep.cluster.preflight")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--num-gpus", type=int, required=True)
    arguments = parser.parse_args()
    job = Job.load(arguments.run_dir, arguments.attempt)
    verdict = _verdict(job, arguments.node, arguments.num_gpus)
    write_atomic(job.directory.control / f"preflight.{job.attempt}" / arguments.node, verdict + "\n")
    print(f"preflight of {arguments.node}: {verdict}", file=sys.stderr)
    return 0 if verdict == "ok" else 1


def _verdict(job: Job, node: str, num_gpus: int) -> str:
    try:
        _check(job, node, num_gpus)
    except MissingNodesError as error:
        return f"unsure {_one_line(error)}"
    except BadNodeError as error:
        return f"bad {_one_line(error)}"
    except Exception as error:  # noqa: BLE001 - whatever torch raises on a broken node is the finding
        return f"unsure {type(error).__name__}: {_one_line(error)}"
    return "ok"


def _check(job: Job, node: str, num_gpus: int) -> None:
    stage_spec(job.stage)
    addresses = read_nodes(job.directory.control / f"nodes.{job.attempt}")
    try:
        import torch
    except (ImportError, OSError) as error:
        raise BadNodeError(f"torch cannot be imported: {error}") from error
    check_gpus(torch.cuda.device_count(), num_gpus)
    if len(addresses) > 1:
        meeting = Meeting(job.directory.control / f"meeting.{job.attempt}.preflight", node, addresses)
        verdicts = job.directory.control / f"preflight.{job.attempt}"
        endpoint = meeting.gather(f"preflight {job.run_id}-{job.attempt}", _MEET_S, lambda: unfit_nodes(verdicts))
        _check_collectives(endpoint, list(addresses), node, "cuda" if num_gpus else "cpu")


def unfit_nodes(verdicts: Path) -> set[str]:
    """The nodes whose verdict is in already and is no good."""
    return {
        path.name for path in verdicts.glob("[!.]*") if path.read_text(encoding="utf-8").strip() not in ("staged", "ok")
    }


def check_gpus(num_seen: int, num_gpus: int) -> None:
    """Raises BadNodeError when the image sees fewer GPUs than the run has processes on this node."""
    if num_seen < num_gpus:
        driver = Path("/proc/driver/nvidia/version")
        about = driver.read_text(encoding="utf-8").splitlines()[0] if driver.exists() else "no NVIDIA driver is loaded"
        raise BadNodeError(f"{num_seen} of {num_gpus} GPUs are visible in the image ({about})")


def _check_collectives(endpoint: str, nodes: list[str], node: str, device: str) -> None:
    """A sum over all nodes on the network that training will use, then everybody's clock at the same moment."""
    import torch
    import torch.distributed as dist

    rank = nodes.index(node)
    host, port = endpoint.rsplit(":", 1)
    timeout = timedelta(seconds=_COLLECTIVE_S)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, int(port), len(nodes), is_master=rank == 0, timeout=timeout
    )
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=len(nodes), timeout=timeout)
    try:
        values = torch.full((_ALL_REDUCE_ELEMENTS,), float(rank + 1), device=device)
        dist.all_reduce(values)
        expected = len(nodes) * (len(nodes) + 1) / 2
        if not bool((values == expected).all()):
            raise BadNodeError(f"a sum over all nodes came out wrong here ({values[0].item()}, not {expected})")
        clocks = torch.zeros(len(nodes), dtype=torch.float64)
        dist.barrier()
        clocks[rank] = time.time()
        dist.all_reduce(clocks)
        check_clock(clocks.tolist(), rank)
    finally:
        dist.destroy_process_group()


def check_clock(clocks: list[float], rank: int) -> None:
    """Raises BadNodeError when this node's clock (seconds since the epoch) is far from the median of all."""
    median = sorted(clocks)[len(clocks) // 2]
    if abs(clocks[rank] - median) > _MAX_CLOCK_S:
        raise BadNodeError(f"its clock is {clocks[rank] - median:+.0f} s away from the other nodes'")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


if __name__ == "__main__":
    sys.exit(main())

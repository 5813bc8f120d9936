"""One node's launcher, inside the image: meets the others, then runs torchrun and its workers to their end.

Its exit code is 0 when this node's ranks completed or saved: `srun --kill-on-bad-exit` ends all other nodes at any
other code, and they may still be writing.
"""

from __future__ import annotations

import argparse
import ctypes
import signal
import subprocess
import sys
from pathlib import Path

from lockstep.cluster.attempt import processes_per_node
from lockstep.cluster.meeting import Meeting, read_nodes
from lockstep.foundation.errors import EXIT_FAILED, EXIT_OK, EXIT_SAVED, LockstepError
from lockstep.foundation.files import write_json
from lockstep.launch.attempts import rank_statuses
from lockstep.launch.command import Rendezvous, worker_command
from lockstep.params.stages import stage_spec
from lockstep.runs.job import Job
from lockstep.tracking.system import SystemSampler

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def main() -> int:
    """Runs this node's part of the attempt."""
    parser = argparse.ArgumentParser(prog="lockstep.cluster.launcher")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--node", required=True)
    arguments = parser.parse_args()
    job = Job.load(arguments.run_dir, arguments.attempt)
    try:
        command = node_command(job, arguments.node)
    except LockstepError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        _leave_status(job, arguments.node, error)
        return error.exit_code
    # A killed rank ends its launcher, and the launcher's end kills the ranks (prctl), so nothing is left over.
    with SystemSampler(job.directory.root, job.attempt, node=arguments.node):
        code = subprocess.run(command, check=False, preexec_fn=_die_with_parent).returncode
    saved = [status for status in rank_statuses(job.directory, job.attempt) if status["exit_code"] == EXIT_SAVED]
    if code != EXIT_OK and saved and len(saved) == len(rank_statuses(job.directory, job.attempt)):
        return EXIT_OK
    return code if code >= 0 else EXIT_FAILED


def node_command(job: Job, node: str) -> list[str]:
    """The worker command of this node. Raises MissingNodesError when the other nodes do not come."""
    addresses = read_nodes(job.directory.control / f"nodes.{job.attempt}")
    num_processes = job.options.get("elastic") or stage_spec(job.stage).num_processes(job.params)
    num_local = processes_per_node(num_processes, len(addresses))
    timeout_s = job.params.run.rendezvous_timeout_s
    rendezvous = None
    if len(addresses) > 1:
        meeting = Meeting(job.directory.control / f"meeting.{job.attempt}", node, addresses)
        name = f"{job.run_id}-{job.attempt}"
        endpoint = meeting.gather(name, timeout_s)
        rendezvous = Rendezvous(endpoint, addresses[node], len(addresses), meeting.is_first, name)
    command = worker_command(job.stage, job.directory.root, job.attempt, num_local, timeout_s, rendezvous)
    return [sys.executable, *command[1:]]


def _leave_status(job: Job, node: str, error: LockstepError) -> None:
    """Says why no rank of this node started, where `end` looks for what ended the attempt."""
    path = job.directory.control / f"status.{job.attempt}.{node}.json"
    write_json(path, {"exit_code": error.exit_code, "message": str(error), "rank": f"of {node}"})


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())

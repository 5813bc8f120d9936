"""What a batch script asks from the image: `python -m lockstep.cluster.node begin|end …`. Answers are words on stdout.

`begin` prints the file that the scripts source, or `complete`. `end` prints the verdict's action and exit code. What
people should know goes to stderr, which is the job's log.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lockstep.cluster.attempt import Allocation, Problem, begin, end
from lockstep.cluster.bare import bare_intent
from lockstep.cluster.image import locked_sha256
from lockstep.cluster.intent import Intent
from lockstep.cluster.site import limits, site_settings, variables
from lockstep.foundation.errors import LockstepError
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.provenance import slurm


def main() -> int:
    """Runs one verb; errors for people end with their own exit code."""
    arguments = _parser().parse_args()
    try:
        return int(arguments.verb(arguments))
    except LockstepError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return error.exit_code


def _begin(arguments: argparse.Namespace) -> int:
    intent = Intent.load(arguments.intent) if arguments.intent else bare_intent(arguments, slurm())
    flavour = str(getattr(intent.experiment.environment, intent.stage))
    environment, settings = variables(), site_settings(intent.source)
    allocation = Allocation(
        slurm=slurm(),
        engine=arguments.engine,
        image=arguments.image,
        image_sha256="" if arguments.engine == "host" else locked_sha256(intent.source, flavour),
        num_nodes=int(environment["SLURM_JOB_NUM_NODES"]),
        cpus_per_task=int(environment.get("SLURM_CPUS_PER_TASK", "1")),
        live_jobs=frozenset(arguments.live.split()),
    )
    for_scripts = begin(intent, allocation, limits(settings))
    print(for_scripts or "complete")
    return 0


def _end(arguments: argparse.Namespace) -> int:
    problem = Problem(arguments.kind, arguments.problem)
    budgets = limits(site_settings(arguments.source))
    verdict = end(
        RunDirectory(arguments.run_dir), arguments.code, arguments.signal, arguments.job_state, problem, budgets
    )
    print(verdict.action, verdict.exit_code)
    print(f"lockstep: {verdict.why}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lockstep.cluster.node")
    verbs = parser.add_subparsers(required=True)
    begins = verbs.add_parser("begin")
    begins.set_defaults(verb=_begin)
    begins.add_argument("--stage", required=True)
    begins.add_argument("--intent", type=Path)
    for name in ("checkout", "runs", "image"):
        begins.add_argument(f"--{name}", type=Path, required=True)
    begins.add_argument("--engine", required=True)
    begins.add_argument("--live", default="", help="ids of the user's jobs that are queued or running")
    begins.add_argument("--git", default="unknown unknown", help="commit and number of changed files, seen by the host")
    begins.add_argument("--grid", type=Path)
    begins.add_argument("--task", type=int)
    ends = verbs.add_parser("end")
    ends.set_defaults(verb=_end)
    ends.add_argument("--run-dir", type=Path, required=True)
    ends.add_argument("--source", type=Path, required=True)
    ends.add_argument("--code", type=int, required=True)
    ends.add_argument("--signal", default="none", choices=("none", "USR2", "TERM"))
    ends.add_argument("--job-state", default="unknown")
    ends.add_argument("--kind", default="none", choices=("none", "bad", "unsure", "refuse"))
    ends.add_argument("--problem", default="")
    return parser


if __name__ == "__main__":
    sys.exit(main())

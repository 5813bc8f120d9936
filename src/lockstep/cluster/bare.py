"""The intent of a bare `sbatch slurm/train.sbatch STAGE`, written on the first node when the job starts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.cluster.intent import FOLDER, Intent
from lockstep.cluster.source import keep_source
from lockstep.foundation.errors import UsageError
from lockstep.params.experiment import Experiment, load_experiment
from lockstep.params.grid import Grid
from lockstep.params.stages import stage_spec
from lockstep.tracking.provenance import UNKNOWN, gather


def bare_intent(arguments: argparse.Namespace, slurm: Mapping[str, str]) -> Intent:
    """The intent of this very job; made by its first attempt from params.yaml and the sources as they are then."""
    path = arguments.runs / FOLDER / f"job-{slurm['job_id']}.json"
    if path.exists():
        return Intent.load(path)
    stage_spec(arguments.stage)
    intent = Intent(
        path=path,
        stage=arguments.stage,
        checkout=arguments.checkout,
        source=keep_source(arguments.checkout, arguments.runs),
        runs=arguments.runs,
        params=_experiment(arguments).model_dump(),
        provenance=_provenance(arguments.checkout, arguments.git),
        job_id=slurm["job_id"],
    )
    intent.save()
    return intent


def _experiment(arguments: argparse.Namespace) -> Experiment:
    params = arguments.checkout / "params.yaml"
    if arguments.grid is None:
        return load_experiment(params)
    points = Grid.read(arguments.grid).experiments(params)
    if arguments.task is None or not 0 <= arguments.task < len(points):
        raise UsageError(
            f"{arguments.grid} has {len(points)} points; start it with: sbatch --array=0-{len(points) - 1} …"
        )
    return points[arguments.task][1]


def _provenance(checkout: Path, seen_by_host: str) -> dict[str, Any]:
    """What can be said here; git's facts by the host where the image has no git."""
    facts = gather(checkout)
    commit, num_changed = seen_by_host.split()
    if facts["git"]["commit"] == UNKNOWN and commit != UNKNOWN:
        facts["git"].update(commit=commit, dirty=num_changed != "0", num_changed=int(num_changed))
    if facts["git"]["commit"] == UNKNOWN:
        print(
            "lockstep: the commit is recorded as unknown, since neither the host nor the image could ask git.\n"
            "Use ./lockstep submit on the login node to record it.",
            file=sys.stderr,
        )
    return facts

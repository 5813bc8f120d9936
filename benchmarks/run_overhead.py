"""What `lockstep run` adds to training: locks, record, supervision and tracking, beside the same workers started bare.

    python benchmarks/run_overhead.py [--rounds 3]

Uses params.yaml and inputs of this checkout (`./lockstep fetch`, `./lockstep run prepare` first). `wall_s`: from start
to end, with the same workers, job and thread counts in both variants.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from _runner import interleaved, report, summarise

from lockstep.launch.command import worker_command
from lockstep.launch.environment import num_threads, worker_variables
from lockstep.params.experiment import load_experiment
from lockstep.params.stages import stage_spec

PROJECT = Path(__file__).resolve().parents[1]
STAGE = "sft"


def recorded(folder: Path) -> dict[str, float]:
    """`./lockstep run sft` in a runs folder without earlier runs; its job file is kept for the bare variant."""
    runs = folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    seconds = _timed([str(PROJECT / "lockstep"), "run", STAGE], {**os.environ, "LOCKSTEP_RUNS": str(runs)})
    (job,) = (runs / STAGE).glob("*/control/job.1.json")
    shutil.copyfile(job, folder / "job.json")
    return {"wall_s": seconds}


def bare(folder: Path, num_processes: int) -> dict[str, float]:
    """The same workers, started as anyone would start them."""
    run_dir = folder / "bare" / STAGE / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    (run_dir / "control").mkdir(parents=True)
    shutil.copyfile(folder / "job.json", run_dir / "control" / "job.1.json")
    command = worker_command(STAGE, run_dir, 1, num_processes, timeout_s=300)
    variables = {
        **worker_variables(num_threads(num_processes)),
        "PYTHONPATH": str(PROJECT / "src"),
        "HF_HUB_OFFLINE": "1",
    }
    return {"wall_s": _timed([sys.executable, *command[1:]], {**os.environ, **variables})}


def _timed(command: list[str], environment: Mapping[str, str]) -> float:
    started = time.monotonic()
    subprocess.run(command, cwd=PROJECT, env=dict(environment), check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def main() -> None:
    """Measures both variants in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    num_processes = stage_spec(STAGE).num_processes(load_experiment(PROJECT / "params.yaml"))
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        variants = {
            "lockstep run": partial(recorded, Path(folder)),
            "bare": partial(bare, Path(folder), num_processes),
        }
        samples = interleaved(variants, rounds=arguments.rounds, warmup=0)
    report("run overhead", {"stage": STAGE}, summarise(samples, baseline="bare"))


if __name__ == "__main__":
    main()

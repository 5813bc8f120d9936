"""What a container costs: start-up, time to the first training step, and training speed, by engine.

    python benchmarks/engines.py [--rounds 5] [--steps 40]

Run it in a checkout whose image is built (`make image`), as a user who may use the engines. `first_statement_s`: from
the command to the first Python statement inside. `first_step_s`: from `./lockstep run sft` to the end of the first
training step of the tiny recipe, two processes. `step_s`: the time of one step after the first ones.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from _runner import interleaved, report, summarise

from lockstep.engines.base import LaunchRequest
from lockstep.engines.select import engines, select_engine
from lockstep.params.recipes import recipe_file

PROJECT = Path(__file__).resolve().parents[1]
FLAVOUR = "cpu"
NUM_FIRST_STEPS = 5
LEFT_OUT = {".venv", ".git", "wheelhouse", "images", "runs", "results"}
"""Of the checkout's own folders, those that the copy does not need."""


@dataclass(frozen=True)
class Workspace:
    """A copy of the checkout on the tiny recipe, so that params.yaml and results of the user stay as they are."""

    root: Path

    def run(self, *words: str, engine: str, runs: Path) -> None:
        """`./lockstep …` there."""
        venv = os.environ.get("LOCKSTEP_VENV", str(PROJECT / ".venv"))
        environment = {**os.environ, "LOCKSTEP_ENGINE": engine, "LOCKSTEP_RUNS": str(runs), "LOCKSTEP_VENV": venv}
        command = [str(self.root / "lockstep"), *words]
        subprocess.run(command, cwd=self.root, env=environment, check=True, stdout=subprocess.DEVNULL)


def make_workspace(folder: Path, num_steps: int) -> Workspace:
    """Copies what a stage needs and prepares the data once."""
    root = folder / "checkout"
    shutil.copytree(
        PROJECT, root, ignore=lambda path, names: LEFT_OUT & set(names) if Path(path) == PROJECT else (), symlinks=True
    )
    (root / "images").symlink_to(PROJECT / "images")
    text = recipe_file(PROJECT, "tiny-cpu").read_text(encoding="utf-8")
    (root / "params.yaml").write_text(text.replace("max_steps: 12", f"max_steps: {num_steps}"), encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    workspace = Workspace(root)
    for words in (("fetch",), ("run", "prepare")):
        workspace.run(*words, engine="host", runs=folder / "runs")
    return workspace


def first_statement_s(engine_name: str, workspace: Workspace, scratch: Path) -> float:
    """Seconds from starting the engine's command to the first statement of the stage, start-up check included."""
    request = LaunchRequest(
        argv=("python", "-c", "import time; print(time.time())"),
        project=workspace.root,
        workdir=workspace.root,
        scratch=scratch,
        attempt_name=f"lockstep-bench-{os.getpid()}",
        flavour=FLAVOUR,
    )
    scratch.mkdir(parents=True, exist_ok=True)
    engine = select_engine(workspace.root, engine_name, FLAVOUR)
    engine.prepare(request)
    command, environment = engine.command(request), engine.process_environment(request)
    started = time.time()
    shown = subprocess.run(command, cwd=workspace.root, env=environment, capture_output=True, text=True, check=True)
    return float(shown.stdout) - started


def training_s(engine_name: str, workspace: Workspace) -> tuple[float, float]:
    """Seconds to the end of the first step, and of one later step, of a fresh SFT run."""
    with tempfile.TemporaryDirectory(prefix="runs-", dir=workspace.root.parent) as runs:
        started = time.time()
        workspace.run("run", "sft", engine=engine_name, runs=Path(runs))
        (spool,) = Path(runs).glob("sft/*/metrics.jsonl")
        lines = [json.loads(line) for line in spool.read_text(encoding="utf-8").splitlines()]
    ends = {line["step"]: line["time_ms"] / 1000 for line in lines if "loss" in line["values"]}
    times = [ends[step] for step in sorted(ends)]
    later = [
        after - before for before, after in zip(times[NUM_FIRST_STEPS:], times[NUM_FIRST_STEPS + 1 :], strict=False)
    ]
    return times[0] - started, statistics.median(later)


def measure(engine_name: str, workspace: Workspace) -> dict[str, float]:
    """All quantities of one engine once."""
    scratch = workspace.root.parent / f"scratch-{engine_name}"
    first_step, step = training_s(engine_name, workspace)
    return {
        "first_statement_s": first_statement_s(engine_name, workspace, scratch),
        "first_step_s": first_step,
        "step_s": step,
    }


def main() -> None:
    """Measures every engine that can run here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    here = [name for name, engine in engines(PROJECT).items() if engine.unavailable(FLAVOUR) is None]
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        workspace = make_workspace(Path(folder), arguments.steps)
        variants = {name: partial(measure, name, workspace) for name in here}
        samples = interleaved(variants, rounds=arguments.rounds)
    report("engines", {"recipe": "tiny-cpu", "steps": arguments.steps}, summarise(samples, baseline="host"))


if __name__ == "__main__":
    main()

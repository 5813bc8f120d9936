"""A checkout on the login node of a lab: submits, watches what a run itself writes, breaks things at known steps."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML

from real.place import Place
from real.slurm_lab import SlurmLab

NUM_STEPS, SAVE_STEPS = 200, 10
LONG_S = 420.0
"""How long a test waits for anything: a two-rank launch takes 20 s on two idle cores and minutes on busy ones."""


@dataclass
class Cluster:
    """One checkout and one runs folder of its own, so that every test starts without runs."""

    lab: SlurmLab
    checkout: Path
    runs: Path

    def lockstep(self, *words: str, check: bool = True) -> Any:
        """`./lockstep WORDS` on the login node."""
        return self.lab.run(
            "./lockstep", *words, cwd=self.checkout, check=check, timeout_s=LONG_S, LOCKSTEP_RUNS=str(self.runs)
        )

    def submit(self, *words: str) -> list[dict[str, Any]]:
        """`./lockstep submit WORDS --json`."""
        answer: list[dict[str, Any]] = json.loads(self.lockstep("submit", *words, "--json").stdout)
        return answer

    def sbatch(self, *words: str) -> str:
        """A bare `sbatch --parsable WORDS` from the checkout; returns the job's id."""
        done = self.lab.run("sbatch", "--parsable", *words, cwd=self.checkout, LOCKSTEP_RUNS=str(self.runs))
        return str(done.stdout.strip())

    def git(self, checkout: Path, *words: str) -> Any:
        """`git WORDS` in a checkout."""
        return self.lab.run("git", *words, cwd=checkout)

    def dvc(self, checkout: Path, *words: str, check: bool = True) -> Any:
        """`dvc WORDS` in a checkout, as somebody without the cluster's runs folder."""
        return self.lab.run(str(checkout / ".venv/bin/dvc"), *words, cwd=checkout, check=check, timeout_s=4 * LONG_S)

    def record(self, run: str | Path) -> dict[str, Any]:
        """run.json; empty while there is none."""
        path = Path(run) / "run.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def causes(self, run: str | Path) -> list[str]:
        """What ended each attempt."""
        return [attempt.get("cause", "going on") for attempt in self.record(run)["attempts"]]

    def step(self, run: str | Path) -> int:
        """The last step of the newest attempt, as the spool has it."""
        spool = Path(run) / "metrics.jsonl"
        attempts = self.record(run).get("attempts", [])
        lines = spool.read_text().splitlines()[-1:] if spool.exists() and attempts else []
        line = json.loads(lines[0]) if lines and lines[0].endswith("}") else {"attempt": 0, "step": 0}
        return int(line["step"]) if line["attempt"] == len(attempts) else 0

    def wait_for_step(self, run: str | Path, step: int, attempt: int = 1) -> None:
        """Until the given attempt (or a later one) has done `step`."""
        self.lab.wait(
            lambda: len(self.record(run).get("attempts", [])) >= attempt and self.step(run) >= step,
            f"step {step} of attempt {attempt}",
            LONG_S,
        )

    def wait_for_end(self, job: str, timeout_s: float = 2 * LONG_S) -> str:
        """Until Slurm has done with the job; returns its state."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}
        self.lab.wait(lambda: self.lab.state(job) in over, f"the end of job {job}", timeout_s)
        return self.lab.state(job)

    def run_here(self, stage: str) -> str:
        """The weights of the same locks on this machine, without a cluster and without an image.

        On two cores, as the two tasks of the cluster have: the number of threads is part of what decides bits.
        """
        runs = self.runs / "here"
        command = ["taskset", "--cpu-list", "0,1", "./lockstep", "run", stage, "--engine", "host"]
        self.lab.run(*command, cwd=self.checkout, timeout_s=4 * LONG_S, LOCKSTEP_RUNS=str(runs))
        shutil.rmtree(self.checkout / "results" / stage)
        (path,) = runs.glob(f"{stage}/*")
        return self.weights(path)

    def log(self, job: str) -> str:
        """What a submitted job's script wrote, over all its starts."""
        return next((self.runs / "log").glob(f"*-{job}.out")).read_text()

    def weights(self, run: str | Path) -> str:
        """The hash of what came out."""
        return str(self.record(run)["result"]["weights_sha256"])

    def worker(self, run: str | Path, rank: int) -> psutil.Process:
        """The process of one rank."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment, words = process.environ(), process.cmdline()
                if str(run) in words and "lockstep.stages.sft" in words and environment.get("RANK") == str(rank):
                    return process
        raise AssertionError(f"rank {rank} of {run} is not running")

    def kill_rank(self, run: str | Path, rank: int) -> None:
        """SIGKILL to one rank."""
        self.worker(run, rank).send_signal(signal.SIGKILL)

    def left_over(self, run: str | Path) -> list[str]:
        """Processes and stop files that should be gone when the run is over."""
        found = [f"{path}" for path in (Path(run) / "control").glob("*stop*")]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(run) in process.cmdline():
                    found.append(" ".join(process.cmdline()))
        return found


@contextlib.contextmanager
def site(cluster: Cluster, **settings: str) -> Iterator[None]:
    """slurm/site.env with further lines, taken away afterwards."""
    path = cluster.checkout / "slurm" / "site.env"
    before = path.read_text()
    path.write_text(before + "".join(f'{name}="{value}"\n' for name, value in settings.items()))
    try:
        yield
    finally:
        path.write_text(before)


@contextlib.contextmanager
def parameters(checkout: Path, **changes: object) -> Iterator[None]:
    """params.yaml with `section__key=value` changed, put back afterwards."""
    path = checkout / "params.yaml"
    before = path.read_text()
    yaml = YAML()
    data = yaml.load(before)
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            data[section][key] = value
        else:
            data[section] = value
    with open(path, "w", encoding="utf-8") as file:
        yaml.dump(data, file)
    try:
        yield
    finally:
        path.write_text(before)


def login_node(place: Place, checkout: Path) -> Path:
    """A second checkout of `place`, on its environment and image, with the steps that the faults need to happen in."""
    place.run("git", "clone", "--quiet", str(place.checkout), str(checkout))
    for name in (".venv", "images", "data"):
        place.run("ln", "-s", place.checkout / name, checkout / name)
    place.run("cp", place.checkout / "image.lock", place.checkout / "params.yaml", checkout)
    (checkout / "slurm" / "site.env").write_text("LOCKSTEP_PREFLIGHT_S=180\nLOCKSTEP_SIGNAL_LEAD_S=20\n")
    yaml = YAML()
    path = checkout / "params.yaml"
    params = yaml.load(path.read_text())
    params["sft"]["max_steps"] = NUM_STEPS
    params["run"]["save_steps"] = SAVE_STEPS
    with open(path, "w", encoding="utf-8") as file:
        yaml.dump(params, file)
    place.run("git", "config", "user.name", "Tester", cwd=checkout)
    place.run("git", "config", "user.email", "tester@example.org", cwd=checkout)
    place.run("git", "commit", "--quiet", "--all", "--message", "The image of this site", cwd=checkout)
    place.run(checkout / ".venv" / "bin" / "dvc", "repro", "prepare", cwd=checkout, LOCKSTEP_ENGINE="host")
    return checkout

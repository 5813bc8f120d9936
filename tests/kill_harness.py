"""Kills a real `./lockstep run STAGE` at random moments, runs it again, and compares the end with the reference bits.

It waits for what the run writes (file events), never for time to pass. Every random choice comes from one printed seed.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from e2e.clones import Clone
from file_events import FileEvents
from lockstep.checkpoints.catalog import list_steps
from lockstep.foundation.files import read_json, sha256_tree
from lockstep.launch.prepare import RunOptions, Sources, prepare_run
from lockstep.tracking.spool import read_points
from tiny_clone import prepared_clone, set_parameters

SAVE_STEPS = 3
STEPS_PER_KILL = 8
VICTIMS = {"sft": ("one rank", "all ranks", "torchrun", "lockstep run"), "ppo": ("one rank", "lockstep run")}
"""Who is killed; one process alone has no torchrun."""
EVERY_STEP = {"sft": "loss", "ppo": "policy/loss"}
"""A metric that each training step writes."""
SILENCE_S = 600
"""Longer than two ranks need to begin on a machine that others use, too; only a hang lasts longer."""


@dataclass(frozen=True)
class Attempt:
    """What one start of the command came to."""

    start_step: int
    end_step: int
    victim: str | None
    asynchronous: bool

    def __str__(self) -> str:
        way = "asynchronous" if self.asynchronous else "synchronous"
        return f"steps {self.start_step} to {self.end_step}, saves {way}, killed: {self.victim or 'nothing'}"


@dataclass
class KillHarness:
    """One clone with prepared data, one stage, and a runs folder for each series of attempts."""

    clone: Clone
    stage: str
    max_steps: int
    seed: int
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        print(f"LOCKSTEP_KILL_SEED={self.seed}")

    def reference(self) -> str:
        """Runs the stage once without a kill; returns a hash over every byte of its results."""
        series = Series(self, self.clone.path.parent / "runs-reference")
        series.attempt(None)
        return series.results()

    def series(self, name: str) -> Series:
        """A runs folder in which the stage has not run yet."""
        return Series(self, self.clone.path.parent / f"runs-{name}")


@dataclass
class Series:
    """Attempts of one run, from the first to the one that ends it."""

    harness: KillHarness
    runs: Path
    attempts: list[Attempt] = field(default_factory=list)
    directory: Path = field(init=False)

    def __post_init__(self) -> None:
        checkout = self.harness.clone.path
        run = prepare_run(Sources(checkout, checkout, self.runs), self.harness.stage, RunOptions())
        self.directory = run.directory.root

    def kill_and_resume(self, num_kills: int) -> None:
        """Goes on to `num_kills` killed attempts and one that ends the run; checks what each attempt promises."""
        while len(self.attempts) < num_kills:
            self.kill_once()
        self.attempt(None)
        recorded = [(entry["start_step"], entry["end_step"]) for entry in self._record()["attempts"]]
        assert recorded == [(attempt.start_step, attempt.end_step) for attempt in self.attempts], "run.json differs"
        print(f"{num_kills} kills tried, {num_kills} survived, steps lost: {self.lost_steps()}")

    def kill_once(self) -> None:
        """One attempt that is killed."""
        self.attempt(self.harness.draw.choice(VICTIMS[self.harness.stage]))
        print(f"kill {len(self.attempts)}: {self.attempts[-1]}", flush=True)

    def copy(self, name: str) -> Series:
        """The same series in a runs folder of its own, as it is now."""
        other = self.harness.series(name)
        shutil.copytree(self.runs, other.runs, dirs_exist_ok=True)
        other.attempts.extend(self.attempts)
        return other

    def forget(self) -> None:
        """Takes the checkpoints away."""
        shutil.rmtree(self.directory / "checkpoints")

    def lost_steps(self) -> list[int]:
        """Steps that were done, not saved, and done again, for each kill."""
        return [done.end_step - then.start_step for done, then in zip(self.attempts, self.attempts[1:], strict=False)]

    def results(self) -> str:
        """A hash over every byte of the run's outputs, which become `results/<stage>`: weights, metrics, curves."""
        return sha256_tree(self.directory / "outputs")

    def attempt(self, victim: str | None) -> Attempt:
        """Starts the command, kills `victim` at a random moment (None: lets it end), and checks what it promises."""
        asynchronous = self.harness.draw.random() < 0.5
        set_parameters(self.harness.clone, run={"asynchronous_save": asynchronous})
        number = len(self._record().get("attempts", [])) + 1
        target = self._target_step()
        process = self._start(number)
        try:
            if victim is not None:
                self._wait_for_the_moment(process, number, target)
                self._kill(process, victim)
            code = process.wait(SILENCE_S)
        finally:
            process.kill()
        assert (code == 0) == (victim is None), f"the command ended with {code}\n{self._output(number)}"
        self.attempts.append(self._seen(number, victim, asynchronous))
        self._check()
        return self.attempts[-1]

    def _check(self) -> None:
        """A resumed attempt starts behind step 0 and loses no more than lies between two saves that stand."""
        if len(self.attempts) == 1:
            return
        killed, resumed = self.attempts[-2:]
        lost = killed.end_step - resumed.start_step
        # A background save stands up to one interval later than it began.
        most = 2 * SAVE_STEPS if killed.asynchronous else SAVE_STEPS
        assert resumed.start_step > 0, "it began again at step 0"
        assert 0 <= lost <= most, f"{lost} steps were lost, and saves are {SAVE_STEPS} apart"

    def _target_step(self) -> int:
        stands = max(list_steps(self.directory / "checkpoints"), default=0)
        first = max(stands, SAVE_STEPS) + 1
        return min(self.harness.draw.randrange(first, first + STEPS_PER_KILL), self.harness.max_steps - 1)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        (self.directory / "checkpoints").mkdir(parents=True, exist_ok=True)
        environment = self.harness.clone.environment({"LOCKSTEP_RUNS": str(self.runs)})
        with open(self.directory / f"output.{number}", "wb") as output:
            return subprocess.Popen(
                ["./lockstep", "run", self.harness.stage],
                cwd=self.harness.clone.path,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _wait_for_the_moment(self, process: subprocess.Popen[bytes], number: int, target: int) -> None:
        """Behind `target` steps; in half of the cases inside the save that comes next, at a random file event of it."""
        in_save = self.harness.draw.random() < 0.5
        left = self.harness.draw.randrange(20)
        for path in self._events(process, number):
            if self._last_step(number) < target:
                continue
            if not in_save:
                return
            left -= any(part.endswith(".tmp") for part in path.parts)
            if left < 0:
                return

    def _events(self, process: subprocess.Popen[bytes], number: int) -> Iterator[Path]:
        with FileEvents(self.directory, self.directory / "checkpoints") as events:
            for path, _ in events.follow(SILENCE_S):
                assert process.poll() is None, f"it ended before it could be killed\n{self._output(number)}"
                yield path

    def _kill(self, process: subprocess.Popen[bytes], victim: str) -> None:
        """SIGKILL; then no process of the attempt may be left."""
        family = psutil.Process(process.pid).children(recursive=True)
        ranks = [member for member in family if _is_rank(member)]
        victims = {
            "one rank": [self.harness.draw.choice(ranks)],
            "all ranks": ranks,
            "torchrun": [member for member in family if _is_torchrun(member)],
            "lockstep run": [psutil.Process(process.pid)],
        }[victim]
        assert victims, f"there is no {victim} to kill"
        for member in victims:
            member.send_signal(signal.SIGKILL)
        process.wait(SILENCE_S)
        _, alive = psutil.wait_procs(family, timeout=SILENCE_S)
        assert not alive, f"killing {victim} left {alive}"

    def _seen(self, number: int, victim: str | None, asynchronous: bool) -> Attempt:
        steps = [point.step for point in self._points(number)]
        assert steps, f"attempt {number} did not train\n{self._output(number)}"
        return Attempt(min(steps) - 1, max(steps), victim, asynchronous)

    def _last_step(self, number: int) -> int:
        return max((point.step for point in self._points(number)), default=0)

    def _points(self, number: int) -> list[Any]:
        points = read_points(self.directory / "metrics.jsonl")
        return [point for point in points if point.attempt == number and EVERY_STEP[self.harness.stage] in point.values]

    def _record(self) -> dict[str, Any]:
        path = self.directory / "run.json"
        record: dict[str, Any] = read_json(path) if path.exists() else {}
        return record

    def _output(self, number: int) -> str:
        return (self.directory / f"output.{number}").read_text(errors="replace")[-3000:]


def sft_harness(folder: Path, num_kills: int, seed: int) -> KillHarness:
    """A harness for sft on two FSDP2 ranks, with everything on that makes a resume hard."""
    sft = {
        "max_steps": _max_steps(num_kills),
        "attention_dropout": 0.1,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "eval_steps": 7,
    }
    clone = prepared_clone(folder, sft=sft, run={"save_steps": SAVE_STEPS})
    return KillHarness(clone, "sft", _max_steps(num_kills), seed)


def ppo_harness(folder: Path, num_kills: int, seed: int) -> KillHarness:
    """A harness for ppo on an int8 backbone, with a critic, a KL controller and reward scales to be resumed."""
    ppo = {
        "max_steps": _max_steps(num_kills),
        "quantization": {"load_in_8bit": True},
        "value": {"adapter": True},
        "scale_rewards": True,
        "kl_target": 0.1,
        "max_new_tokens": 8,
    }
    off = {"enabled": False}
    clone = prepared_clone(folder, sft=off, reward=off, ppo=ppo, run={"save_steps": SAVE_STEPS})
    for stage in ("sft", "reward"):
        clone.run("./lockstep", "run", stage)
    return KillHarness(clone, "ppo", _max_steps(num_kills), seed)


def _max_steps(num_kills: int) -> int:
    return SAVE_STEPS + STEPS_PER_KILL * (num_kills + 1)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _is_rank(process: psutil.Process) -> bool:
    return not _is_torchrun(process) and any(word.startswith("lockstep.stages.") for word in _words(process))


def _is_torchrun(process: psutil.Process) -> bool:
    return "torch.distributed.run" in _words(process)

"""The loop around the engine: resume, steps, metrics, sample tables, checkpoints, stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.checkpoints.store import CheckpointStore, Found
from lockstep.foundation.errors import DoNotRetryError, StoppedAfterSave
from lockstep.params.run import RunParams
from lockstep.training.common.determinism import derived_seed, seed_global_generators
from lockstep.training.common.ranks import Ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.common.throughput import as_duration
from lockstep.training.ppo.engine import PpoEngine, StepResult
from lockstep.training.ppo.memory import memory_lines
from lockstep.training.ppo.samples import sample_table

_GIB = 1 << 30


class _Abandoned(Exception):  # noqa: N818 - not an error: a stop was seen in the middle of a rollout
    """Leaves a rollout, which changes nothing and is drawn again to the bit."""


@dataclass(frozen=True)
class Session:
    """What surrounds the training of one attempt."""

    ranks: Ranks
    store: CheckpointStore
    stop: StopFlag
    run: RunParams
    seed: int
    log_metrics: Callable[[int, dict[str, float]], None]
    samples_file: Path
    """Sample tables, a JSON line per table; rank 0 appends."""
    found: Found | None = None
    """The checkpoint to go on from."""
    elastic: bool = False
    until_step: int | None = None
    """Save and stop after this step, as if asked to."""


@dataclass
class PpoTrainer:
    """Runs the engine from the checkpoint (or from the start) to `max_steps`."""

    engine: PpoEngine
    session: Session
    step_s: float | None = None
    """Mean seconds per step of this attempt."""
    _seconds: list[float] = field(default_factory=list)

    def train(self) -> None:
        """Trains to the end; every checkpoint stands when it returns.

        Raises StoppedAfterSave on a stop, DoNotRetryError on a violated guard. Collective.
        """
        self._resume()
        self._say("\n".join(["Memory that PPO counts on:", *memory_lines(self.engine.memory_table())]))
        progress = self.engine.state.progress
        while progress.step < self.engine.params.max_steps:
            if self.session.stop.poll():
                self._stop()
            try:
                result = self.engine.step(self._poll)
            except _Abandoned:
                self._stop()
            self._report(result)
            self._save_if_due()
            if progress.step == self.session.until_step:
                self._stop()
        self.session.stop.settle()
        self.session.store.wait()

    def _resume(self) -> None:
        session = self.session
        seed_global_generators(derived_seed(session.seed, "ppo", session.ranks.rank))
        if session.found is None:
            return
        saved_by, ranks = session.found.manifest.world_size, session.ranks
        if saved_by != ranks.world_size and not session.elastic:
            raise DoNotRetryError(
                f"{session.found.path} was saved by {saved_by} ranks and this attempt has {ranks.world_size}. Go on "
                "with --elastic (rewards agree, bits do not), or with as many ranks."
            )
        self.engine.state.load(session.store, session.found)
        self._say(f"going on from step {session.found.step} ({session.found.path})")
        if saved_by != ranks.world_size:
            seed_global_generators(derived_seed(session.seed, "elastic", session.found.step, ranks.rank))

    def _poll(self) -> None:
        if self.session.stop.poll():
            raise _Abandoned

    def _stop(self) -> None:
        self.session.stop.settle()
        step = self.engine.state.progress.step
        if step == 0:
            raise StoppedAfterSave("stopped before the first step was done; the same command starts again")
        self._save()
        self.session.store.confirm(step)
        raise StoppedAfterSave(f"saved at step {step}; repeat the command to go on")

    def _save_if_due(self) -> None:
        step = self.engine.state.progress.step
        if step % self.session.run.save_steps == 0 or step == self.engine.params.max_steps:
            self._save()

    def _save(self) -> None:
        self.engine.state.save(self.session.store)

    def _report(self, result: StepResult) -> None:
        step, run = self.engine.state.progress.step, self.session.run
        self.session.log_metrics(step, result.metrics)
        self._seconds.append(result.metrics["time/step_s"])
        self.step_s = sum(self._seconds) / len(self._seconds)
        if step % run.sample_steps == 0 and self.session.ranks.is_main:
            _append_line(self.session.samples_file, {"step": step, "samples": sample_table(result.experience)})
        if step % run.logging_steps == 0 or step == self.engine.params.max_steps:
            self._say(self._line(step, result.metrics))

    def _say(self, text: str) -> None:
        if self.session.ranks.is_main:
            print(text, flush=True)

    def _line(self, step: int, metrics: dict[str, float]) -> str:
        saved = self.session.store.last_saved
        assert self.step_s is not None
        parts = [
            f"step {step}/{self.engine.params.max_steps}",
            f"score {metrics['objective/score']:+.3f}",
            f"KL/token {metrics['objective/kl_per_token']:.4f}",
            f"entropy {metrics['policy/entropy']:.2f}",
            f"clipped {metrics['policy/clipfrac']:.1%}",
            f"tokens/s {metrics['tokens_per_s/rollout']:,.0f} rollout, {metrics['tokens_per_s/update']:,.0f} update",
            f"ETA {as_duration(self.step_s * (self.engine.params.max_steps - step))}",
            f"peak {metrics['memory/peak'] / _GIB:.2f} GiB",
        ]
        return "  ".join([*parts, f"saved at {saved.step}"] if saved else parts)


def _append_line(path: Path, value: Any) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(value, ensure_ascii=False) + "\n")

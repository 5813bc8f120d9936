"""`lockstep generate`: a finished run's models, in the engine that trained them, with the terminal."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import read_json
from lockstep.launch.in_environment import run_beside
from lockstep.runs.directory import RunDirectory


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of reference and result."""

    prompt: str | None
    """A text to go on from; None: a chat in the terminal."""
    max_new_tokens: int
    temperature: float
    seed: int

    def arguments(self) -> list[str]:
        """For the worker's command line."""
        asked = [] if self.prompt is None else ["--prompt", self.prompt]
        limits = ["--max-new-tokens", str(self.max_new_tokens), "--temperature", str(self.temperature)]
        return [*asked, *limits, "--seed", str(self.seed)]


def ask(project: Path, directory: RunDirectory, question: Question) -> int:
    """Runs the worker in the foreground and returns its exit code. Raises UsageError for a run that was never begun."""
    record = directory.read()
    if not record or not record["attempts"]:
        raise UsageError(f"{directory.root.name} was never begun, so it has no text to give.")
    attempt = record["attempts"][-1]["attempt"]
    inputs = read_json(directory.job_file(attempt))["inputs"].values()
    place = ["--run-dir", str(directory.root), "--attempt", str(attempt)]
    return run_beside(
        project,
        directory,
        record,
        ("python", "-m", "lockstep.evaluation.try_out", *place, *question.arguments()),
        name="generate",
        reads=[Path(path) for path in inputs],
        interactive=True,
    )

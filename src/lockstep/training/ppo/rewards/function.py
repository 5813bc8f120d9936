"""A reward of one's own: a Python function in a file named by a parameter. Its source is part of the run id."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.foundation.errors import LockstepError, UsageError, nearest


class FunctionReward:
    """Calls `function(texts)` and checks what comes back."""

    def __init__(self, function: Callable[[list[str]], Sequence[float]], name: str) -> None:
        self._function = function
        self._name = name

    def score(self, texts: list[str]) -> list[float]:
        """The function's numbers. Raises LockstepError when there are too few or one is not finite."""
        scores = [float(score) for score in self._function(texts)]
        if len(scores) != len(texts):
            raise LockstepError(f"{self._name} returned {len(scores)} scores for {len(texts)} texts")
        for text, score in zip(texts, scores, strict=True):
            if not math.isfinite(score):
                raise LockstepError(f"{self._name} returned {score} for the text {text!r}")
        return scores


def load_function(file: str, project: Path) -> FunctionReward:
    """Loads `path.py:name`, relative to `project`. Raises UsageError when file or function is not there."""
    path, _, name = file.rpartition(":")
    source = project / path
    if not source.is_file():
        raise UsageError(f"ppo.reward.file: {path} is not in {project}")
    spec = importlib.util.spec_from_file_location(f"lockstep_reward_{source.stem}", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise UsageError(f"ppo.reward.file: {path} has no function '{name}'.{nearest(name, vars(module))}")
    return FunctionReward(getattr(module, name), file)

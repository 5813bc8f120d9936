"""A parameter grid: dotted names with lists of values, and all combinations of them as experiments.

In a YAML file                                   or as words: -S sft.learning_rate=1.0e-4,2.0e-4 -S seed=1,2,3
sft.learning_rate: [1.0e-4, 2.0e-4]
seed: [1, 2, 3]
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, YAMLError

from lockstep.foundation.errors import UsageError
from lockstep.params.experiment import Experiment, load_experiment

Point = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """What varies. The last name varies fastest."""

    choices: dict[str, list[Any]]
    where: str
    """Who asked for it, for messages."""

    @classmethod
    def read(cls, file: Path) -> Grid:
        """A grid file. Raises UsageError where it is not names with lists of values."""
        if not file.exists():
            raise UsageError(f"{file} is not here; a grid is a YAML file like `sft.learning_rate: [1.0e-4, 2.0e-4]`.")
        values = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
        if not isinstance(values, dict) or not all(isinstance(found, list) and found for found in values.values()):
            raise UsageError(f"{file} must hold dotted parameter names, each with a list of values.")
        return cls(values, str(file))

    @classmethod
    def parse(cls, words: Sequence[str]) -> Grid:
        """`name=value,value` words, values in YAML. Raises UsageError for one that is none or a name given twice."""
        choices: dict[str, list[Any]] = {}
        for word in words:
            name, equals, values = word.partition("=")
            if not equals or not values or name in choices:
                raise UsageError(f"-S {word}: write each name once, like -S sft.learning_rate=1.0e-4,2.0e-4")
            try:
                choices[name] = YAML(typ="safe", pure=True).load(f"[{values}]")
            except YAMLError as error:
                raise UsageError(f"-S {word}: its values are no YAML:\n{error}") from None
        return cls(choices, "-S")

    def points(self) -> list[Point]:
        """The combinations, in order."""
        return [dict(zip(self.choices, chosen, strict=True)) for chosen in itertools.product(*self.choices.values())]

    def experiments(self, params: Path) -> list[tuple[Point, Experiment]]:
        """Every point and its experiment: `params` with the point's values, checked.

        Raises UsageError for a name that params.yaml's model lacks, and for a point that it refuses.
        """
        base = load_experiment(params).model_dump()
        return [(point, self._experiment(base, point)) for point in self.points()]

    def _experiment(self, base: dict[str, Any], point: Point) -> Experiment:
        data = _copy(base)
        for name, value in point.items():
            *sections, key = name.split(".")
            target = data
            for section in sections:
                target = target.get(section, {}) if isinstance(target, dict) else {}
            if key not in target:
                raise UsageError(f"{self.where}: there is no parameter '{name}' in params.yaml.")
            target[key] = value
        try:
            return Experiment.model_validate(data)
        except ValueError as error:
            raise UsageError(f"{self.where}: the point {label(point)} is refused:\n{error}") from None


def label(point: Point) -> str:
    """A point for people: `sft.learning_rate=0.0001 seed=1`."""
    return " ".join(f"{name}={value}" for name, value in point.items())


def _copy(value: Any) -> Any:
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, dict) else value

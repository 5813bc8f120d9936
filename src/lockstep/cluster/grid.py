"""A parameter grid: dotted names and lists of values in a YAML file, all combinations of them as experiments.

sft.learning_rate: [1.0e-4, 2.0e-4]
seed: [1, 2, 3]
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lockstep.foundation.errors import UsageError
from lockstep.params.experiment import Experiment, load_experiment

Point = dict[str, Any]


def experiments(params: Path, grid: Path) -> list[tuple[Point, Experiment]]:
    """Every point of the grid and its experiment, checked, in the order of the file (the last name varies fastest).

    Raises UsageError for a grid that is none, and for a point that params.yaml's model refuses.
    """
    base = load_experiment(params).model_dump()
    return [(point, _experiment(base, point, grid)) for point in points(grid)]


def points(grid: Path) -> list[Point]:
    """The combinations. Raises UsageError where the file is not names with lists of values."""
    if not grid.exists():
        raise UsageError(f"{grid} is not here; a grid is a YAML file like `sft.learning_rate: [1.0e-4, 2.0e-4]`.")
    values = YAML(typ="safe", pure=True).load(grid.read_text(encoding="utf-8"))
    if not isinstance(values, dict) or not all(isinstance(choices, list) and choices for choices in values.values()):
        raise UsageError(f"{grid} must hold dotted parameter names, each with a list of values.")
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def label(point: Point) -> str:
    """A point for people: `sft.learning_rate=0.0001 seed=1`."""
    return " ".join(f"{name}={value}" for name, value in point.items())


def _experiment(base: dict[str, Any], point: Point, grid: Path) -> Experiment:
    data = _copy(base)
    for name, value in point.items():
        *sections, key = name.split(".")
        target = data
        for section in sections:
            target = target.get(section, {})
        if key not in target:
            raise UsageError(f"{grid}: there is no parameter '{name}' in params.yaml.")
        target[key] = value
    try:
        return Experiment.model_validate(data)
    except ValueError as error:
        raise UsageError(f"{grid}: the point {label(point)} is refused:\n{error}") from None


def _copy(value: Any) -> Any:
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, dict) else value

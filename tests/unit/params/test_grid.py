"""A grid is every combination, each a checked experiment; a mistake in it is found before anything is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.foundation.errors import UsageError
from lockstep.params.grid import Grid, label

PARAMS = Path(__file__).resolve().parents[3] / "recipes" / "tiny-cpu.yaml"


def _grid(folder: Path, text: str) -> Path:
    path = folder / "grid.yaml"
    path.write_text(text)
    return path


def test_every_combination_in_order(tmp_path: Path) -> None:
    grid = Grid.read(_grid(tmp_path, "sft.learning_rate: [1.0e-4, 2.0e-4]\nseed: [1, 2, 3]\n"))
    assert grid.choices == Grid.parse(["sft.learning_rate=1.0e-4,2.0e-4", "seed=1,2,3"]).choices
    found = grid.experiments(PARAMS)
    assert [(e.sft.learning_rate, e.seed) for _, e in found] == [
        (lr, seed) for lr in (1.0e-4, 2.0e-4) for seed in (1, 2, 3)
    ]
    assert label(found[1][0]) == "sft.learning_rate=0.0001 seed=2"
    assert found[0][1].ppo == found[5][1].ppo


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sft.learning_rat: [1.0e-4]", "no parameter 'sft.learning_rat'"),
        ("nowhere.seed: [1]", "no parameter 'nowhere.seed'"),
        ("seed: 1", "each with a list of values"),
        ("sft.max_steps: [10, -1]", "the point sft.max_steps=-1 is refused"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Grid.read(_grid(tmp_path, text)).experiments(PARAMS)


@pytest.mark.parametrize("words", [["seed"], ["seed="], ["seed=1", "seed=2"], ["seed=[1"]])
def test_a_word_that_is_no_choice_is_named(words: list[str]) -> None:
    with pytest.raises(UsageError, match=f"-S {words[-1]}".replace("[", r"\[")):
        Grid.parse(words)

"""A parameter file is right, or every mistake in it is named with how to mend it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from lockstep.foundation.errors import EXIT_USAGE, UsageError
from lockstep.params.base import deciding
from lockstep.params.experiment import load_experiment, parse_experiment, read_yaml
from lockstep.params.recipes import use_recipe

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tiny() -> dict[str, Any]:
    return dict(read_yaml(ROOT / "recipes" / "tiny-cpu.yaml"))


def _changed(raw: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(raw)
    *parents, last = path.split(".")
    place = changed
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = value
    return changed


@pytest.mark.parametrize("recipe", ["tiny-cpu", "smollm2-135m-cpu"])
def test_recipes_load(recipe: str) -> None:
    assert load_experiment(ROOT / "recipes" / f"{recipe}.yaml").seed == 42


def test_params_yaml_is_the_default_recipe() -> None:
    assert (ROOT / "params.yaml").read_text() == (ROOT / "recipes" / "smollm2-135m-cpu.yaml").read_text()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("sft.learnig_rate", 1e-4, "Did you mean 'learning_rate'?"),
        ("sft.warmup_ratio", 0.1, "write warmup_steps"),
        ("sft.overwrite_output_dir", True, "LOCKSTEP_FRESH=1"),
        ("sft.save_steps", 5, "run.save_steps"),
        ("sft.max_steps", "ten", "sft.max_steps: Input should be a valid integer"),
        ("sft.peft", {"r": 8, "lora_aplha": 4}, "Did you mean 'lora_alpha'?"),
        ("ppo.rollout_batch_size", 15, "must divide"),
        ("ppo.reward", {"kind": "function", "file": "elsewhere/mine.py:score"}, "below rewards/"),
        ("model.source", "hub:org/name@main", "never a branch"),
        ("model.quantization", {"load_in_8bit": True}, "add sft.peft"),
        ("sft", {"num_processes": 3, "dp_replicate_size": 2}, "must divide num_processes"),
        ("optimizer", {}, "unknown parameter"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_cure(tiny: dict[str, Any], path: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_experiment(_changed(tiny, path, value))
    assert message in str(caught.value)
    assert caught.value.exit_code == EXIT_USAGE


def test_all_mistakes_are_named_at_once(tiny: dict[str, Any]) -> None:
    wrong = _changed(_changed(tiny, "sft.max_steps", -1), "ppo.gamma", 2.0)
    with pytest.raises(UsageError, match="2 mistakes") as caught:
        parse_experiment(wrong)
    assert "sft.max_steps" in str(caught.value)
    assert "ppo.gamma" in str(caught.value)


def test_malformed_yaml_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("seed: 1\nsft: [unclosed\n")
    with pytest.raises(UsageError, match="line"):
        load_experiment(path)


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"lockstep use"):
        load_experiment(tmp_path / "params.yaml")


def test_paths_and_the_run_section_decide_nothing(tiny: dict[str, Any]) -> None:
    one = deciding(parse_experiment(tiny))
    moved = parse_experiment(_changed(tiny, "model.path", "elsewhere/model"))
    logged = parse_experiment(_changed(tiny, "run.logging_steps", 7))
    assert deciding(moved) == one
    assert {**deciding(logged), "run": None} == {**one, "run": None}
    assert deciding(parse_experiment(_changed(tiny, "sft.learning_rate", 1e-4))) != one


def test_use_keeps_comments_and_hand_made_edits(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    recipe = (ROOT / "recipes" / "tiny-cpu.yaml").read_text()
    (tmp_path / "recipes" / "tiny-cpu.yaml").write_text(recipe)
    edited = recipe.replace("seed: 42", "seed: 43  # mine")
    (tmp_path / "params.yaml").write_text(edited)
    use_recipe(tmp_path, "tiny-cpu")
    assert (tmp_path / "params.yaml").read_text() == recipe
    assert (tmp_path / "params.yaml.before").read_text() == edited
    with pytest.raises(UsageError, match="Did you mean 'tiny-cpu'"):
        use_recipe(tmp_path, "tiny_cpu")

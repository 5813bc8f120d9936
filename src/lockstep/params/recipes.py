"""Recipes are whole parameter files. Using one writes params.yaml and keeps its comments."""

from __future__ import annotations

from pathlib import Path

from lockstep.foundation.errors import UsageError, nearest
from lockstep.foundation.files import write_atomic
from lockstep.params.experiment import load_experiment


def recipe_file(project: Path, name: str) -> Path:
    """The recipe called `name` (`tiny-cpu`, `recipes/tiny-cpu.yaml` or any path).

    Raises UsageError with the nearest known one.
    """
    shipped = {path.stem: path for path in sorted((project / "recipes").glob("*.yaml"))}
    if name in shipped:
        return shipped[name]
    path = Path(name)
    for candidate in (path, project / path):
        if candidate.is_file():
            return candidate
    raise UsageError(f"There is no recipe '{name}'.{nearest(path.stem, shipped)} Recipes: {', '.join(shipped)}.")


def use_recipe(project: Path, name: str) -> Path:
    """Checks a recipe and writes it to params.yaml, comments included; returns the recipe's path.

    The text is copied as it is. Edits in params.yaml that no recipe holds are kept beside it as params.yaml.before.
    """
    recipe = recipe_file(project, name)
    load_experiment(recipe)
    target = project / "params.yaml"
    text = recipe.read_text(encoding="utf-8")
    if target.exists():
        current = target.read_text(encoding="utf-8")
        known = [path.read_text(encoding="utf-8") for path in (project / "recipes").glob("*.yaml")]
        if current not in (*known, text):
            write_atomic(project / "params.yaml.before", current)
    write_atomic(target, text)
    return recipe

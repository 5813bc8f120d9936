"""The table of all recipes in docs/recipes.md: every figure by `lockstep plan`, on the hardware that the recipe states.

    python benchmarks/recipe_table.py [RECIPE ...] [--write]

Without --write the table is printed; with it, the one between the markers in docs/recipes.md (and README.md, where it
has them) is replaced. Recipes for CPUs are left out: they are run, not planned, and their figures are in the README.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lockstep.foundation.files import write_atomic
from lockstep.launch.plan import make_plan
from lockstep.params.experiment import load_experiment
from lockstep.planning.hardware import Asked

PROJECT = Path(__file__).parents[1]
BEGIN, END = "<!-- recipes: begin -->", "<!-- recipes: end -->"
_GIB = 1 << 30
_HEAD = (
    "| recipe | stage | GPUs | per GPU: tensors + allowance of memory | verdict | host per node (load, save) "
    "| checkpoint | time at the stated utilisation |\n|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Plans the recipes and prints or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    names = options.recipes or [
        path.stem for path in sorted((PROJECT / "recipes").glob("*.yaml")) if "-cpu" not in path.stem
    ]
    table = "\n".join([_HEAD, *(line for name in names for line in lines(name))])
    print(table)
    if options.write:
        for file in (PROJECT / "docs" / "recipes.md", PROJECT / "README.md"):
            replace(file, table)


def lines(name: str) -> list[str]:
    """One row per planned stage."""
    experiment = load_experiment(PROJECT / "recipes" / f"{name}.yaml")
    plan = make_plan(PROJECT, experiment, Asked(), name=name, savings=False)
    return [_row(name, plan["hardware"], stage) for stage in plan["stages"].values()]


def _row(name: str, hardware: str, stage: dict[str, Any]) -> str:
    storage, time = stage["storage"], stage["time"]
    span = "by the data" if time["hours"] is None else f"{time['hours']['best']:.1f}–{time['hours']['worst']:.1f} h"
    return (
        f"| `{name}` | {stage['stage']} | {stage['num_ranks']} × {hardware} "
        f"| {_gib(stage['peak_gpu_bytes'])} + {_gib(stage['allowance_bytes'])} of {_gib(stage['capacity_bytes'])} GiB "
        f"| {stage['verdict']}, {_gib(stage['margin_bytes'])} left "
        f"| {_gib(storage['host_load_bytes_per_node'])}, {_gib(storage['host_save_bytes_per_node'])} GiB "
        f"| {_gib(storage['checkpoint_bytes'])} GiB | {span} |"
    )


def _gib(size: int) -> str:
    gib = size / _GIB
    return f"{gib:,.1f}" if abs(gib) >= 0.95 else f"{gib:.2f}"


def replace(file: Path, table: str) -> None:
    """Puts the table between the markers of a file, if it has them."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if BEGIN in text and END in text:
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        write_atomic(file, f"{before}{BEGIN}\n{table}\n{END}{after}")


if __name__ == "__main__":
    main()

"""dvc.yaml and the table of stages say the same: what decides a stage, what it reads, what it leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.params.experiment import load_experiment, read_yaml
from lockstep.params.stages import STAGES

ROOT = Path(__file__).resolve().parents[3]
PIPELINE: dict[str, Any] = read_yaml(ROOT / "dvc.yaml")


def test_the_same_stages_in_the_same_order() -> None:
    assert list(PIPELINE["stages"]) == list(STAGES)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_has_one_command_text_everywhere(name: str) -> None:
    assert PIPELINE["stages"][name]["cmd"] == f"./lockstep run {name}"


@pytest.mark.parametrize("name", STAGES)
def test_params_are_the_deciding_sections_and_the_environment(name: str) -> None:
    params = PIPELINE["stages"][name]["params"]
    assert [entry for entry in params if isinstance(entry, str)] == list(STAGES[name].sections)
    assert {"image.lock": [f"environments.${{environment.{name}}}.id"]} in params


@pytest.mark.parametrize("name", STAGES)
def test_deps_are_the_inputs_and_the_code(name: str) -> None:
    experiment = load_experiment(ROOT / "recipes" / "tiny-cpu.yaml")
    deps = {_resolved(dep, experiment.model_dump()) for dep in PIPELINE["stages"][name]["deps"]}
    inputs = {wanted.path for wanted in STAGES[name].inputs(experiment).values()}
    code = {f"src/lockstep/{room}" for room in STAGES[name].code}
    assert deps - {"rewards"} == inputs | code


@pytest.mark.parametrize("name", STAGES)
def test_outs_are_the_outputs(name: str) -> None:
    stage = PIPELINE["stages"][name]
    outs = {*stage.get("outs", []), *stage.get("metrics", [])}
    assert outs == {f"results/{name}/{output}" for output in STAGES[name].outputs}


def _resolved(dep: str, params: dict[str, Any]) -> str:
    if not dep.startswith("${"):
        return dep
    value: Any = params
    for key in dep.strip("${}").split("."):
        value = value[key]
    return str(value)

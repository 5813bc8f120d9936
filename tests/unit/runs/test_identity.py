"""A run id follows from what decides the result, and from nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lockstep.params.experiment import Experiment, load_experiment
from lockstep.params.stages import STAGES
from lockstep.runs.identity import identify

ROOT = Path(__file__).resolve().parents[3]
INPUTS = {"tokens": "a" * 64, "model": "b" * 64}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "src" / "lockstep", tmp_path / "lockstep"))


@pytest.fixture
def experiment() -> Experiment:
    return load_experiment(ROOT / "recipes" / "tiny-cpu.yaml")


def _run_id(package: Path, experiment: Experiment, stage: str = "sft", environment: str = "e1") -> str:
    return identify(STAGES[stage], experiment, INPUTS, environment, package).run_id


def test_the_same_locks_give_the_same_id(package: Path, experiment: Experiment) -> None:
    assert _run_id(package, experiment) == _run_id(package, experiment)
    assert _run_id(package, experiment, environment="e2") != _run_id(package, experiment)


@pytest.mark.parametrize(
    ("file", "decides_sft"),
    [
        ("training/sft/__init__.py", True),
        ("training/common/__init__.py", True),
        ("data/__init__.py", True),
        ("models/__init__.py", True),
        ("params/sft.py", True),
        ("training/ppo/__init__.py", False),
        ("tracking/spool.py", False),
        ("cli.py", False),
        ("launch/run_stage.py", False),
        ("stages/report.py", False),
    ],
)
def test_code_counts_by_room(package: Path, experiment: Experiment, file: str, decides_sft: bool) -> None:
    before = _run_id(package, experiment)
    path = package / file
    path.write_text((path.read_text() if path.exists() else "") + "\n# another line\n")
    assert (_run_id(package, experiment) != before) is decides_sft


def test_parameters_of_other_stages_do_not_count(package: Path, experiment: Experiment) -> None:
    other = experiment.model_copy(update={"ppo": experiment.ppo.model_copy(update={"gamma": 0.9})})
    assert _run_id(package, other) == _run_id(package, experiment)
    assert _run_id(package, other, "ppo") != _run_id(package, experiment, "ppo")
    seeded = experiment.model_copy(update={"seed": 43})
    assert _run_id(package, seeded) != _run_id(package, experiment)

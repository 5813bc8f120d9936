"""What Python hands to bash arrives as it was, whatever is in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lockstep.cluster.shell import assignments, environment_file
from lockstep.engines.variables import PASSED

ROOT = Path(__file__).resolve().parents[3]
AWKWARD = ["", "two words", "it's", 'a "quote"', "$HOME `id` \\ *", "Größe\nsecond line", "a,b=c"]


def _bash(script: str, *words: str, **variables: str) -> str:
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(
        ["bash", "-uc", script, "-", *words], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


@pytest.mark.parametrize("value", AWKWARD)
def test_a_value_survives_a_file_that_bash_sources(tmp_path: Path, value: str) -> None:
    file = tmp_path / "attempt.sh"
    file.write_text(assignments({"one": value, "many": ["first", value]}))
    shown = _bash('. "$1"; printf "%s|%s|%s" "$one" "${#many[@]}" "${many[1]}"', str(file))
    assert shown == f"{value}|2|{value}"


@pytest.mark.parametrize("value", AWKWARD)
def test_python_and_bash_write_the_same_environment_file(tmp_path: Path, value: str) -> None:
    file = tmp_path / "environment"
    file.write_text(environment_file({"LOCKSTEP_X": value}))
    script = (
        '. "$1/slurm/lib/common.sh"; assignment LOCKSTEP_X "$2" >"$3"; printf %s "$(. "$3"; printf %s "$LOCKSTEP_X")"'
    )
    assert _bash(script, str(ROOT), value, str(tmp_path / "by-bash")) == value.rstrip("\n")
    assert _bash('. "$1"; printf %s "$LOCKSTEP_X"', str(file)) == value


def test_bash_passes_the_variables_that_the_engines_pass() -> None:
    names = [pattern.replace("*", "SOMETHING") for pattern in PASSED]
    script = '. "$1/slurm/lib/common.sh"; shift; for name in "$@"; do is_passed "$name" && echo "$name"; done; true'
    refused = ["HOME", "AWS_SECRET_ACCESS_KEY", "LOCKSTEP_HUB_TOKEN", "SLURMISH", "PYTHONPATH"]
    assert _bash(script, str(ROOT), *names, *refused).split() == names


@pytest.mark.parametrize("script", ["train.sbatch", "sweep.sbatch", "mlflow-server.sbatch"])
def test_every_batch_script_says_how_it_is_used(script: str) -> None:
    path = ROOT / "slurm" / script
    asked = subprocess.run(["bash", path, "--help"], capture_output=True, text=True, check=True)
    assert f"slurm/{script}" in asked.stdout

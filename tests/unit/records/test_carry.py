"""A run with its full model goes to another machine through a DVC remote, whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.foundation.errors import DoNotRetryError, LockstepError, UsageError
from lockstep.foundation.files import sha256_file, sha256_tree, write_json
from lockstep.records.carry import pull, push
from lockstep.runs.directory import RunDirectory


def _clone(folder: Path, remote: Path) -> Path:
    """A checkout of its own with DVC and one shared remote; nothing else is shared."""
    folder.mkdir()
    for words in (
        ["git", "init", "--quiet"],
        [sys.executable, "-m", "dvc", "init", "--quiet"],
        [sys.executable, "-m", "dvc", "remote", "add", "--quiet", "--default", "shared", str(remote)],
    ):
        subprocess.run(words, cwd=folder, check=True)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return _clone(tmp_path / "home", tmp_path / "remote")


@pytest.fixture
def away(tmp_path: Path, home: Path) -> Path:
    return _clone(tmp_path / "away", tmp_path / "remote")


@pytest.fixture
def run(home: Path) -> RunDirectory:
    run = RunDirectory(home / "runs" / "sft" / "0123456789ab")
    run.model.mkdir(parents=True)
    (run.model / "model.safetensors").write_bytes(b"weights" * 1000)
    entry = {"bytes": 7000, "sha256": sha256_file(run.model / "model.safetensors")}
    write_json(run.outputs / "weights" / "manifest.json", {"kind": "model", "files": {"model.safetensors": entry}})
    (run.root / "log").mkdir()
    (run.root / "log" / "attempt-1.log").write_text("stays here")
    run.write({"status": "complete", "result": {"outputs_sha256": sha256_tree(run.outputs)}, "attempts": [{}]})
    return run


def test_a_pushed_run_arrives_whole(home: Path, away: Path, run: RunDirectory) -> None:
    assert push(home, run).num_files == 3
    assert push(home, run).num_files == 0
    assert pull(away, run.root.name).num_files == 3
    there = away / "runs" / "sft" / run.root.name
    assert (there / "model" / "model.safetensors").read_bytes() == b"weights" * 1000
    assert (there / "run.json").read_bytes() == run.run_json.read_bytes()
    assert not (there / "log").exists()
    assert pull(away, run.root.name).num_files == 0


def test_a_file_that_was_changed_on_the_way_is_refused(
    home: Path, away: Path, run: RunDirectory, tmp_path: Path
) -> None:
    push(home, run)
    sha256 = sha256_file(run.model / "model.safetensors")
    (tmp_path / "remote" / "lockstep" / "files" / sha256[:2] / sha256).write_bytes(b"weightz" * 1000)
    with pytest.raises(LockstepError, match="arrived damaged"):
        pull(away, run.root.name)
    there = away / "runs" / "sft" / run.root.name
    assert list((there / "model").iterdir()) == []
    assert not (there / "run.json").exists()


def test_a_damaged_run_is_not_pushed(home: Path, run: RunDirectory) -> None:
    (run.model / "model.safetensors").write_bytes(b"weightz" * 1000)
    with pytest.raises(DoNotRetryError, match=r"model\.safetensors"):
        push(home, run)


def test_what_is_missing_is_said_with_the_command_that_mends_it(home: Path, away: Path, run: RunDirectory) -> None:
    with pytest.raises(UsageError, match=f"lockstep push {run.root.name}"):
        pull(away, run.root.name)
    subprocess.run([sys.executable, "-m", "dvc", "remote", "remove", "shared"], cwd=home, check=True)
    with pytest.raises(UsageError, match="dvc remote add"):
        push(home, run)

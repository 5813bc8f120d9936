"""What a stage reads is there, whole, and what its manifest says; else the message says how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.foundation.errors import DoNotRetryError, UsageError
from lockstep.foundation.files import sha256_file, write_json
from lockstep.launch.inputs import HashCache, resolve_inputs
from lockstep.params.experiment import Experiment, load_experiment
from lockstep.params.stages import STAGES

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def experiment() -> Experiment:
    return load_experiment(ROOT / "recipes" / "tiny-cpu.yaml")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tokens = tmp_path / "results" / "prepare" / "sft"
    tokens.mkdir(parents=True)
    (tokens / "rows").write_text("tokens")
    model = tmp_path / "data" / "tiny" / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"weights")
    entry = {"bytes": 7, "sha256": sha256_file(model / "model.safetensors")}
    write_json(model / "manifest.json", {"files": {"model.safetensors": entry}})
    return tmp_path


def test_paths_and_hashes_by_name(project: Path, experiment: Experiment) -> None:
    found = resolve_inputs(project, project / "runs", STAGES["sft"], experiment)
    assert found.paths == {"tokens": project / "results/prepare/sft", "model": project / "data/tiny/model"}
    assert found.hashes["model"] == sha256_file(project / "data/tiny/model/manifest.json")


def test_a_changed_row_changes_the_hash(project: Path, experiment: Experiment) -> None:
    before = resolve_inputs(project, project / "runs", STAGES["sft"], experiment).hashes["tokens"]
    (project / "results/prepare/sft/rows").write_text("tokenz")
    assert resolve_inputs(project, project / "runs", STAGES["sft"], experiment).hashes["tokens"] != before


def test_what_is_missing_is_named_with_the_command_that_makes_it(project: Path, experiment: Experiment) -> None:
    with pytest.raises(UsageError, match=r"needs its input 'sft'.*\n.*lockstep run sft"):
        resolve_inputs(project, project / "runs", STAGES["reward"], _with_pairs(project, experiment))
    (project / "data/tiny/model/manifest.json").unlink()
    with pytest.raises(UsageError, match="lockstep fetch"):
        resolve_inputs(project, project / "runs", STAGES["sft"], experiment)


def test_a_flipped_byte_in_the_weights_is_refused(project: Path, experiment: Experiment) -> None:
    (project / "data/tiny/model/model.safetensors").write_bytes(b"weightz")
    with pytest.raises(DoNotRetryError, match="not the file that"):
        resolve_inputs(project, project / "runs", STAGES["sft"], experiment)


def test_a_full_model_that_is_elsewhere_is_asked_for_by_run(project: Path, experiment: Experiment) -> None:
    experiment = _with_pairs(project, experiment)
    sft = project / "results" / "sft"
    write_json(sft / "weights" / "manifest.json", {"kind": "model", "files": {}})
    write_json(sft / "result.json", {"run_id": "abc123"})
    with pytest.raises(UsageError, match=r"lockstep pull abc123"):
        resolve_inputs(project, project / "runs", STAGES["reward"], experiment)
    model = project / "runs" / "sft" / "abc123" / "model"
    model.mkdir(parents=True)
    assert resolve_inputs(project, project / "runs", STAGES["reward"], experiment).paths["sft"] == model


def test_a_remembered_hash_follows_the_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    cache = HashCache(tmp_path / "cache.json")
    first = cache.file(file)
    cache.save()
    assert HashCache(tmp_path / "cache.json").file(file) == first == sha256_file(file)
    file.write_text("three")
    assert HashCache(tmp_path / "cache.json").file(file) == sha256_file(file) != first


def _with_pairs(project: Path, experiment: Experiment) -> Experiment:
    pairs = project / "results" / "prepare" / "preferences"
    pairs.mkdir(parents=True, exist_ok=True)
    (pairs / "train.jsonl").write_text("{}\n")
    return experiment

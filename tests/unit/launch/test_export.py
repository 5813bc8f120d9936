"""What cannot be exported is refused before anything starts, with what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exported_runs import order, record_run
from lockstep.exporting.order import Order
from lockstep.foundation.errors import DoNotRetryError, UsageError
from lockstep.foundation.files import sha256_file, write_json
from lockstep.launch.export import checked, export, with_inputs
from lockstep.params.experiment import Experiment
from lockstep.records.find import find_run
from lockstep.runs.directory import RunDirectory
from tiny_llama import experiment
from tracked_runs import read_record

LORA = {"peft": {"r": 4}}
NF4 = {"source": "path:models/base", "quantization": {"load_in_4bit": True}}


def recorded(root: Path, stage: str = "sft", status: str = "complete", **sections: Any) -> RunDirectory:
    directory = RunDirectory(root / "runs" / stage / "0123456789ab")
    params: Experiment = experiment(**sections)
    return record_run(directory, params, status=status)


def with_result(directory: RunDirectory, kind: str) -> RunDirectory:
    write_json(directory.outputs / "weights" / "manifest.json", {"kind": kind, "files": {}, "weights_sha256": "0"})
    return directory


def asked(directory: RunDirectory, **changes: Any) -> Order:
    return order(directory, directory.root.parents[2] / "dest", {}, **changes)


def test_a_run_that_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path)
    monkeypatch.setenv("LOCKSTEP_RUNS", str(tmp_path / "runs"))
    with pytest.raises(UsageError, match="'fedcba' is no run on this machine"):
        find_run(tmp_path, "fedcba")


def test_an_existing_destination_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "dest").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        export(tmp_path, recorded(tmp_path), tmp_path / "dest", step=None, merge=False, max_shard_bytes=1 << 30)


def test_a_stage_without_weights_and_a_run_without_anything_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Name a run of sft, reward, ppo"):
        checked(asked(recorded(tmp_path, "prepare")))
    with pytest.raises(UsageError, match="neither a result nor a checkpoint"):
        checked(asked(recorded(tmp_path, status="failed")))
    with pytest.raises(UsageError, match="neither a result nor a checkpoint"):
        checked(asked(with_result(recorded(tmp_path, "ppo"), "none")))


def test_a_model_that_lies_elsewhere_is_pulled_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lockstep pull 0123456789ab"):
        checked(asked(with_result(recorded(tmp_path), "model")))


def test_a_step_that_was_not_kept_is_answered_with_those_that_were(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with pytest.raises(UsageError, match="step 3. It has none yet"):
        checked(asked(run, step=3))
    for step in (2, 10):
        (run.checkpoints / f"step-{step}").mkdir(parents=True)
    with pytest.raises(UsageError, match="There are: 2, 10"):
        checked(asked(run, step=3))
    assert checked(asked(run, step=10)).step == 10


def test_of_a_run_that_is_not_complete_the_newest_checkpoint_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path, status="stopped")
    (run.checkpoints / "step-2").mkdir(parents=True)
    assert checked(asked(run)).step == "last"
    assert "not complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "kind", "sections", "reason"),
    [
        ("sft", "adapter", {"sft": LORA, "model": NF4}, "quantised base.*let PEFT put the adapter"),
        ("ppo", "adapter", {"sft": LORA, "model": NF4}, "quantised base.*let PEFT put the adapter"),
        ("sft", "model", {}, "no adapter to merge"),
        ("reward", "adapter", {}, "without its head"),
    ],
)
def test_what_must_not_be_merged_is_refused(
    tmp_path: Path, stage: str, kind: str, sections: dict[str, Any], reason: str
) -> None:
    run = with_result(recorded(tmp_path, stage, **sections), kind)
    run.model.mkdir()
    with pytest.raises(UsageError, match=f"(?s){reason}"):
        checked(asked(run, merge=True))


def test_the_base_must_be_the_one_that_the_run_locked(tmp_path: Path) -> None:
    base = tmp_path / "models" / "base"
    write_json(base / "config.json", {})
    write_json(base / "manifest.json", {"files": {}})
    run = recorded(tmp_path, sft=LORA)
    record = read_record(run.root)
    record["locks"]["inputs"]["model"] = sha256_file(base / "manifest.json")
    write_json(run.run_json, record)
    assert with_inputs(tmp_path, asked(run, step="last")).inputs == {"model": str(base)}
    write_json(base / "manifest.json", {"files": {}, "source": "another"})
    with pytest.raises(DoNotRetryError, match="models/base.* is not the 'model'"):
        with_inputs(tmp_path, asked(run, step="last"))

"""The store in one process: no torch.distributed, same guarantees."""

from __future__ import annotations

import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.checkpoints import space
from lockstep.checkpoints.catalog import leftovers, list_steps, step_folder
from lockstep.checkpoints.manifest import FileEntry, Manifest, read_manifest
from lockstep.checkpoints.store import CheckpointStore, Retention
from lockstep.foundation.errors import LockstepError
from lockstep.foundation.files import sha256_file


def _store(root: Path, **options: Any) -> CheckpointStore:
    return CheckpointStore(root, run_id="run", **options)


def _save(store: CheckpointStore, step: int, **more: Any) -> None:
    store.save(step, {"w": torch.full((3, 2), float(step))}, per_rank={"r": step}, facts={"step": step}, **more)


def _loaded(store: CheckpointStore) -> tuple[int, float]:
    found = store.newest()
    assert found is not None
    tensors = {"w": torch.zeros(3, 2)}
    loaded = store.load(found, tensors)
    assert loaded.per_rank == {"r": found.step}
    assert loaded.facts == {"step": found.step}
    return found.step, tensors["w"][0, 0].item()


def test_an_empty_folder_has_no_newest(tmp_path: Path) -> None:
    assert _store(tmp_path).newest() is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_was_saved_is_loaded_and_the_rest_is_pruned(tmp_path: Path, asynchronous: bool) -> None:
    with _store(tmp_path, retention=Retention(2, keep_every=4), asynchronous=asynchronous) as store:
        for step in range(1, 8):
            _save(store, step)
    assert list_steps(tmp_path) == [4, 6, 7]
    assert leftovers(tmp_path) == []
    assert _loaded(_store(tmp_path)) == (7, 7.0)


def test_the_best_by_metric_stays(tmp_path: Path) -> None:
    store = _store(tmp_path, retention=Retention(1, keep_best="min"))
    for step, metric in enumerate([3.0, 1.0, 2.0, float("nan"), 4.0], start=1):
        _save(store, step, metric=metric)
    assert list_steps(tmp_path) == [2, 5]


def test_what_a_dead_attempt_left_is_removed_at_the_start(tmp_path: Path) -> None:
    left = tmp_path / ".step-9.0123456789ab.tmp"
    left.mkdir()
    (left / "__0_0.distcp").write_bytes(b"half")
    _store(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_replaced_when_training_gets_there_again(tmp_path: Path) -> None:
    store = _store(tmp_path, retention=Retention(1, keep_every=1))
    for step in (1, 2, 3):
        _save(store, step)
    (step_folder(tmp_path, 2) / "__0_0.distcp").write_bytes(b"damaged")
    (step_folder(tmp_path, 3) / "rank-00000.pt").write_bytes(b"damaged")
    store = _store(tmp_path, retention=Retention(1))
    assert _loaded(store) == (1, 1.0)
    _save(store, 2)
    assert list_steps(tmp_path) == [2, 3], "the newest good one stands, though a damaged one has a higher step"
    assert _loaded(_store(tmp_path)) == (2, 2.0)
    _save(store, 4)
    assert list_steps(tmp_path) == [4]


def test_saving_a_step_that_stands_writes_nothing(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _save(store, 1)
    before = (step_folder(tmp_path, 1) / "manifest.json").stat().st_ino
    _save(store, 1)
    resumed = _store(tmp_path)
    _loaded(resumed)
    _save(resumed, 1)
    assert (step_folder(tmp_path, 1) / "manifest.json").stat().st_ino == before


def test_before_the_first_step_nothing_is_saved(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="before the first step"):
        _save(_store(tmp_path), 0)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"w": torch.zeros(3, 2), "v": torch.zeros(1)}, "does not hold 'v'"),
        ({"w": torch.zeros(2, 3)}, r"holds 'w' as float32\[3, 2\], the run has float32\[2, 3\]"),
        ({"w": torch.zeros(3, 2, dtype=torch.bfloat16)}, "the run has bfloat16"),
        ({}, "holds 1 tensors that nothing asked for, such as 'w'"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor], message: str
) -> None:
    store = _store(tmp_path)
    _save(store, 1)
    found = store.newest()
    assert found is not None
    with pytest.raises(LockstepError, match=message):
        store.load(found, tensors)


def test_a_part_of_a_checkpoint_can_be_read_for_an_export(tmp_path: Path) -> None:
    store = _store(tmp_path)
    store.save(1, {"w": torch.ones(2), "optim/w/exp_avg": torch.ones(2)}, per_rank={}, facts={})
    found = store.newest()
    assert found is not None
    weights = {"w": torch.zeros(2)}
    store.load(found, weights, partial=True)
    assert weights["w"].tolist() == [1.0, 1.0]


def test_another_run_is_continued_from_without_touching_its_folder(tmp_path: Path) -> None:
    other = CheckpointStore(tmp_path / "other", run_id="other")
    _save(other, 5)
    (tmp_path / "other" / ".step-6.0123456789ab.tmp").mkdir()
    before = sorted((tmp_path / "other").iterdir())
    store = _store(tmp_path / "mine")
    found = store.newest(root=tmp_path / "other", run_id="other")
    assert found is not None
    store.load(found, {"w": torch.zeros(3, 2)})
    assert sorted((tmp_path / "other").iterdir()) == before
    _save(store, 5)
    assert list_steps(tmp_path / "mine") == [5]


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _store(tmp_path)
    _save(store, 1)
    monkeypatch.setattr(space, "_SLACK_BYTES", 1 << 60)
    with pytest.raises(LockstepError, match=r"step 2 was not saved; step 1 .* stands.*run\.save_total_limit"):
        _save(store, 2)
    assert list_steps(tmp_path) == [1]
    assert store.last_saved is not None
    assert store.last_saved.step == 1


def test_facts_that_are_no_json_are_refused_at_the_call(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        _store(tmp_path).save(1, {}, per_rank={}, facts={"loss": float("inf")})


class _Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def test_loading_runs_no_code_from_a_checkpoint(tmp_path: Path) -> None:
    """A rank file with a pickle bomb, and a manifest that vouches for it."""
    store = _store(tmp_path / "store")
    _save(store, 1)
    folder = step_folder(tmp_path / "store", 1)
    bomb = folder / "rank-00000.pt"
    torch.save({"r": _Bomb(tmp_path / "exploded")}, bomb)
    manifest, _ = read_manifest(folder)
    entry = FileEntry(bomb.stat().st_size, sha256_file(bomb), 0)
    Manifest(**{**vars(manifest), "files": {**manifest.files, bomb.name: entry}}).write(folder)
    store = _store(tmp_path / "store")
    found = store.newest()
    assert found is not None
    with pytest.raises(LockstepError, match=r"rank state.*[Ww]eights"):
        store.load(found, {"w": torch.zeros(3, 2)})
    assert not (tmp_path / "exploded").exists()


def test_no_file_of_a_checkpoint_is_a_bare_pickle(tmp_path: Path) -> None:
    _save(_store(tmp_path), 1)
    for path in step_folder(tmp_path, 1).iterdir():
        assert stat.S_ISREG(path.stat().st_mode)
        with pytest.raises((pickle.UnpicklingError, ValueError, KeyError, EOFError, IndexError)):
            pickle.loads(path.read_bytes())
    assert set(json.loads((step_folder(tmp_path, 1) / "tensors.json").read_text())) == {"tensors"}

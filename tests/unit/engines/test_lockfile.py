"""The environment id follows from the lock alone, and changes with everything that is installed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.engines.environment import environment_id
from lockstep.engines.lockfile import Pin, environment_id_of, lock_path, read_lock
from lockstep.foundation.errors import DoNotRetryError, UsageError

PROJECT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("flavour", ["cpu", "cuda"])
def test_image_lock_holds_the_id_of_the_committed_lock(flavour: str):
    pins = read_lock(lock_path(PROJECT, flavour))
    assert environment_id(PROJECT, flavour) == environment_id_of(pins)


@pytest.mark.parametrize("flavour", ["cpu", "cuda"])
def test_every_locked_file_has_a_known_content(flavour: str):
    records = json.loads((PROJECT / "requirements" / f"{flavour}.records.json").read_text())
    pins = read_lock(lock_path(PROJECT, flavour))
    assert {name: row["sha256"] for name, row in records.items()} == {name: pin.sha256 for name, pin in pins.items()}


def test_flavours_differ_and_cpu_has_no_cuda_library():
    assert environment_id(PROJECT, "cpu") != environment_id(PROJECT, "cuda")
    assert not [name for name in read_lock(lock_path(PROJECT, "cpu")) if name.startswith("nvidia")]
    assert [name for name in read_lock(lock_path(PROJECT, "cuda")) if name.startswith("nvidia")]


@pytest.mark.parametrize("change", [{"version": "2"}, {"sha256": "b" * 64}, {"name": "other"}])
def test_any_change_of_a_pin_changes_the_id(change: dict[str, str]):
    pin = Pin("package", "1", "a" * 64)
    changed = replace(pin, **change)
    assert environment_id_of({pin.name: pin}) != environment_id_of({changed.name: changed})


def test_lockstep_itself_and_the_order_of_pins_do_not_count():
    one, two = Pin("one", "1", "a" * 64), Pin("two", "1", "b" * 64)
    itself = Pin("lockstep", "9", "c" * 64)
    assert environment_id_of({"one": one, "two": two}) == environment_id_of(
        {"two": two, "lockstep": itself, "one": one}
    )


def test_a_lock_with_two_hashes_for_a_package_is_refused(tmp_path: Path):
    lock = tmp_path / "cpu.lock"
    lock.write_text(f"six==1 \\\n    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\n")
    with pytest.raises(DoNotRetryError, match="six has 2 hashes.*make lock"):
        read_lock(lock)


def test_an_unknown_flavour_names_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'cuda'"):
        environment_id(PROJECT, "cuda12")

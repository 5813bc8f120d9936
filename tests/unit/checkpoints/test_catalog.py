"""The folder of checkpoints as a host without torch sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.checkpoints.catalog import (
    damages,
    leftovers,
    list_steps,
    remove_checkpoint,
    share,
    step_folder,
    temporary_folder,
    usable_manifest,
)
from lockstep.checkpoints.manifest import FileEntry, Manifest, TensorEntry, UnusableError, read_manifest
from lockstep.foundation.files import sha256_bytes


def _checkpoint(root: Path, step: int) -> Manifest:
    folder = step_folder(root, step)
    folder.mkdir(parents=True)
    contents = {"a": b"x" * 100, "b": b"y" * 7}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    files = {name: FileEntry(len(c), sha256_bytes(c), rank) for rank, (name, c) in enumerate(contents.items())}
    holds = {"w": TensorEntry("float32", (2, 3)), "v": TensorEntry("bfloat16", ())}
    manifest = Manifest("run", step, 2, files, holds, facts={"tokens": 12, "rate": 0.1}, metric=0.5)
    manifest.write(folder)
    return manifest


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = _checkpoint(tmp_path, 3)
    manifest, digest = read_manifest(step_folder(tmp_path, 3))
    assert manifest == written
    assert len(digest) == 64
    assert manifest.summary() == "step 3: 1 bfloat16, 1 float32 tensors, 107 bytes, written by 2 rank(s)"


def test_any_changed_byte_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 3)
    path = step_folder(tmp_path, 3) / "manifest.json"
    whole = path.read_bytes()
    content = [at for at, byte in enumerate(whole) if not chr(byte).isspace()]
    for at in content:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UnusableError):
            read_manifest(path.parent)


def test_steps_are_listed_in_order_and_temporaries_are_no_steps(tmp_path: Path) -> None:
    for step in (10, 9, 100):
        _checkpoint(tmp_path, step)
    temporary_folder(tmp_path, 11).mkdir()
    (tmp_path / "step-x").mkdir()
    assert list_steps(tmp_path) == [9, 10, 100]
    assert len(leftovers(tmp_path)) == 1
    assert list_steps(tmp_path / "absent") == []


def test_damages_name_the_file_and_what_is_wrong(tmp_path: Path) -> None:
    manifest = _checkpoint(tmp_path, 1)
    folder = step_folder(tmp_path, 1)
    assert damages(folder, manifest, manifest.files) == []
    (folder / "a").write_bytes(b"z" * 100)
    (folder / "b").unlink()
    assert damages(folder, manifest, manifest.files) == [
        "a does not have the hash it was written with",
        "b can't be read: No such file or directory",
    ]


def test_a_checkpoint_of_another_run_is_unusable(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 1)
    with pytest.raises(UnusableError, match="belongs to run run, not to mine"):
        usable_manifest(step_folder(tmp_path, 1), "mine")


def test_removing_a_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 1)
    remove_checkpoint(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


@given(
    sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=30),
    written_by=st.integers(1, 6),
    world_size=st.integers(1, 6),
)
def test_every_file_is_checked_by_exactly_one_rank(sizes: list[int], written_by: int, world_size: int) -> None:
    files = {f"f{i}": FileEntry(size, "", i % written_by) for i, size in enumerate(sizes)}
    manifest = replace(Manifest("r", 1, written_by, files, {}), files=files)
    shares = [share(manifest, rank, world_size) for rank in range(world_size)]
    assert sorted(name for names in shares for name in names) == sorted(files)


def test_the_host_side_of_checkpoints_needs_no_torch() -> None:
    code = "import sys, lockstep.checkpoints.catalog, lockstep.checkpoints.retention; assert 'torch' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )

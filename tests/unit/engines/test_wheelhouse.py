"""A wheelhouse holds exactly the locked files, and says for which locks it was filled."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from lockstep.engines import wheelhouse
from lockstep.engines.locking import LockedFile
from lockstep.foundation.errors import LockstepError


def locked(name: str, content: bytes) -> str:
    return f"{name}==1 \\\n    --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two locks, and an index that is a folder on this machine."""
    (tmp_path / "requirements").mkdir()
    contents = {"alpha": wheel(tmp_path, "alpha"), "uv": wheel(tmp_path, "uv")}
    (tmp_path / "requirements" / "cpu.lock").write_text(locked("alpha", contents["alpha"].read_bytes()))
    (tmp_path / "requirements" / "dev.lock").write_text(locked("uv", contents["uv"].read_bytes()))
    offered = {
        name: LockedFile(path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest())
        for name, path in contents.items()
    }
    monkeypatch.setattr(wheelhouse, "locked_files", lambda project, name: offered)
    return tmp_path


def wheel(folder: Path, name: str) -> Path:
    """The smallest wheel that pip takes."""
    path = folder / "index" / f"{name}-1-py3-none-any.whl"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.dist-info/RECORD", "")
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_is_filled_once_and_damage_is_mended(project: Path):
    said: list[str] = []
    folder = wheelhouse.fill_wheelhouse(project, "cpu", said.append)
    assert names(folder) == {"alpha-1-py3-none-any.whl", "uv-1-py3-none-any.whl", ".complete"}
    assert said == [f"downloading 2 of 2 files to {folder}"]
    wheelhouse.fill_wheelhouse(project, "cpu", said.append)
    assert len(said) == 1
    (folder / "alpha-1-py3-none-any.whl").write_bytes(b"cut off")
    (folder / "old-0-py3-none-any.whl").write_bytes(b"of another lock")
    wheelhouse.fill_wheelhouse(project, "cpu", said.append)
    assert said[1:] == [f"downloading 1 of 2 files to {folder}"]
    assert names(folder) == {"alpha-1-py3-none-any.whl", "uv-1-py3-none-any.whl", ".complete"}


def test_a_file_with_another_hash_is_refused_and_the_folder_is_not_complete(project: Path):
    wheel(project, "alpha").write_bytes(b"not what was locked")
    with pytest.raises(LockstepError, match="could not be filled"):
        wheelhouse.fill_wheelhouse(project, "cpu", lambda text: None)
    assert ".complete" not in names(wheelhouse.wheelhouse_path(project, "cpu"))

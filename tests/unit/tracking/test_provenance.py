"""Provenance tells where a run came from, also in checkouts that git distrusts, and gives away nobody."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
from pathlib import Path

import pytest

from lockstep.foundation.files import sha256_file
from lockstep.foundation.processes import capture
from lockstep.tracking import provenance
from lockstep.tracking.provenance import gather


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    root.mkdir()
    _git(root, "init", "-q", "-b", "main")
    (root / "train.py").write_text("lr = 1\n")
    (root / "dvc.lock").write_text("schema: '2.0'\n")
    _git(root, "add", ".")
    _git(root, "commit", "-q", "-m", "first")
    return root


def _git(root: Path, *args: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", *identity, *args], cwd=root, check=True, capture_output=True, text=True).stdout


def test_a_clean_checkout_gives_its_commit(checkout: Path, tmp_path: Path) -> None:
    facts = gather(checkout, keep_diff=tmp_path / "dirty.diff")["git"]
    assert facts["commit"] == _git(checkout, "rev-parse", "HEAD").strip()
    assert (facts["branch"], facts["dirty"], facts["changed"], facts["diff_sha256"]) == ("main", False, [], None)
    assert not (tmp_path / "dirty.diff").exists()


def test_local_changes_can_be_put_back_from_what_was_kept(checkout: Path, tmp_path: Path) -> None:
    (checkout / "train.py").write_bytes("lr = 2  # höher\n".encode() + b"\xff\n")
    (checkout / "new.py").write_text("x = 1\n")
    kept = tmp_path / "dirty.diff"
    facts = gather(checkout, keep_diff=kept)["git"]
    assert facts["dirty"] is True
    assert sorted(facts["changed"]) == ["new.py", "train.py"]
    assert facts["diff_sha256"] == sha256_file(kept)
    changed = (checkout / "train.py").read_bytes()
    _git(checkout, "checkout", "-q", "train.py")
    _git(checkout, "apply", str(kept))
    assert (checkout / "train.py").read_bytes() == changed


def test_the_lock_that_dvc_rewrites_between_stages_is_no_local_change(checkout: Path) -> None:
    (checkout / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    assert gather(checkout)["git"]["dirty"] is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_checkout_of_another_user_is_read_all_the_same(checkout: Path) -> None:
    for path in (checkout, *checkout.rglob("*")):
        os.chown(path, 12345, 12345)
    assert capture(["git", "rev-parse", "HEAD"], cwd=checkout) is None
    assert len(gather(checkout)["git"]["commit"]) == 40


def test_without_git_the_commit_is_unknown_and_says_so(tmp_path: Path) -> None:
    assert gather(tmp_path)["git"] == {"commit": "unknown", "branch": "unknown", "dirty": "unknown"}


def test_facts_are_plain_json_and_name_no_user_no_host_and_no_secret(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_topsecret")
    monkeypatch.setenv("DVC_EXP_NAME", "round-lark")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    _git(checkout, "remote", "add", "origin", "https://anna:ghp_word@git.example.org/lab/kit.git")
    facts = gather(checkout)
    text = json.dumps(facts)
    assert facts["git"]["remote"] == "https://git.example.org/lab/kit.git"
    assert facts["dvc"]["exp_name"] == "round-lark"
    assert facts["slurm"] == {"job_id": "4711"}
    for word in ("topsecret", "ghp_word", "anna", platform.node()):
        assert word not in text
    assert f'"{getpass.getuser()}"' not in text


def test_the_hardware_class_is_the_instruction_set_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "capture", lambda args: None)
    hardware = provenance.hardware()
    assert hardware["class"] == f"{platform.machine()} {hardware['cpu']['isa']}"
    assert hardware["cpu"]["num_cores"] == len(os.sched_getaffinity(0))
    assert hardware["cpu"]["isa"] in Path("/proc/cpuinfo").read_text()


def test_the_hardware_class_is_model_and_driver_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\nprintf 'NVIDIA H200, 570.86.15, 143771\\nNVIDIA H200, 570.86.15, 143771\\n'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hardware = provenance.hardware()
    assert hardware["class"] == "NVIDIA H200, driver 570.86.15"
    assert [gpu["memory_bytes"] for gpu in hardware["gpus"]] == [143771 * 2**20] * 2

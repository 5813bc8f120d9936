"""What a newcomer meets on day one holds: make lists its targets, the shim finds its way, files stay small."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
_INDEXES = re.compile(r"\b(pypi|pythonhosted|npmjs|deb\.debian|download\.pytorch)[.](org|com)\b")


def run(command: list[Path], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True)
    return [PROJECT / name for name in listed.stdout.split("\0") if name]


def test_no_file_names_a_package_index():
    offenders = [
        path.relative_to(PROJECT).as_posix()
        for path in tracked_files()
        if path.exists() and _INDEXES.search(path.read_text(encoding="utf-8", errors="ignore"))
    ]
    assert offenders == []


def test_source_files_keep_to_one_purpose():
    too_long = {
        path.relative_to(PROJECT).as_posix(): count
        for path in (PROJECT / "src").rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 350
    }
    assert too_long == {}


def test_make_help_lists_the_promised_targets():
    shown = subprocess.run(["make", "help"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for target in ("setup", "repro", "test", "test-real", "soak", "image", "ui", "bench", "shell", "lock", "lint"):
        assert re.search(rf"make {target} ", shown), target


def test_the_shim_finds_its_checkout_through_links_and_odd_names(tmp_path: Path):
    checkout = tmp_path / "a folder, ünïcode"
    (checkout / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(PROJECT / "lockstep", checkout / "lockstep")
    python = checkout / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH"; echo "$@"\n')
    python.chmod(0o755)
    first = tmp_path / "link"
    first.symlink_to(checkout / "lockstep")
    second = tmp_path / "bin" / "lockstep"
    second.parent.mkdir()
    second.symlink_to("../link")
    shown = subprocess.run([second, "run", "sft"], cwd="/", capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == [f"{checkout}/src", "-m lockstep run sft"]


def test_the_shim_says_what_to_do_where_there_is_no_environment(tmp_path: Path):
    shutil.copy(PROJECT / "lockstep", tmp_path / "lockstep")
    done = subprocess.run(
        [tmp_path / "lockstep"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, check=False
    )
    assert done.returncode == 2
    assert "make setup" in done.stderr


def test_setup_refuses_another_python_and_says_how_to_get_3_11(tmp_path: Path):
    shutil.copytree(PROJECT / "requirements", tmp_path / "requirements")
    shutil.copytree(PROJECT / "scripts", tmp_path / "scripts")
    other = tmp_path / "python3"
    other.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.13.1 && exit\nexit 1\n')
    other.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": str(other)}
    done = subprocess.run(
        [tmp_path / "scripts" / "setup.sh"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 2
    assert "Python 3.13.1" in done.stderr
    assert "apt install python3.11" in done.stderr
    assert not (tmp_path / ".venv").exists()

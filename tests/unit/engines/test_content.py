"""The content id names what an image holds, and nothing about when, by whom or with which engine it was made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockstep.engines.content import content_id, differences, entries


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small root file system."""
    for folder in ("opt/lockstep/bin", "etc", "tmp", "proc"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "opt/lockstep/module.py").write_text("value = 1\n")
    (tmp_path / "opt/lockstep/bin/python").symlink_to("/usr/bin/python3.11")
    return tmp_path


def test_times_and_what_engines_add_do_not_count(root: Path):
    before = content_id(entries(root))
    os.utime(root / "opt/lockstep/module.py", (1, 1))
    (root / ".singularity.d").mkdir()
    (root / ".singularity.d" / "runscript").touch()
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "tmp" / "anything").touch()
    (root / ".dockerenv").touch()
    assert content_id(entries(root)) == before


def test_every_other_change_is_named(root: Path):
    locked = entries(root)
    (root / "opt/lockstep/module.py").write_text("value = 2\n")
    (root / "opt/lockstep/new.py").touch()
    (root / "opt/lockstep/bin/python").unlink()
    found = entries(root)
    assert content_id(found) != content_id(locked)
    assert differences(locked, found) == [
        "missing  /opt/lockstep/bin/python",
        "changed  /opt/lockstep/module.py",
        "added    /opt/lockstep/new.py",
    ]


def test_modes_and_link_targets_count(root: Path):
    locked = entries(root)
    (root / "opt/lockstep/module.py").chmod(0o755)
    (root / "opt/lockstep/bin/python").unlink()
    (root / "opt/lockstep/bin/python").symlink_to("/usr/bin/python3.12")
    assert differences(locked, entries(root)) == [
        "changed  /opt/lockstep/bin/python",
        "changed  /opt/lockstep/module.py",
    ]


def test_names_that_are_no_text_are_listed_all_the_same(root: Path):
    with open(os.fsencode(root) + b"/etc/\xff\tname", "wb"):
        pass
    assert any(line.startswith("/etc/\\xff\\tname\tfile\t") for line in entries(root))

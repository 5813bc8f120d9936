"""The stop flag of one process; two ranks are in tests/integration/test_stop_flag.py."""

from __future__ import annotations

from pathlib import Path

from lockstep.training.common.stopping import StopFlag


def test_the_stop_file_of_this_attempt_is_seen_and_stays_seen(tmp_path: Path) -> None:
    flag = StopFlag(tmp_path / "control", attempt=2)
    (tmp_path / "control").mkdir()
    assert not flag.poll()
    (tmp_path / "control" / "stop.2").touch()
    assert flag.poll()
    (tmp_path / "control" / "stop.2").unlink()
    assert flag.poll()
    assert flag.settle()


def test_a_stop_file_of_an_earlier_attempt_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "stop.1").touch()
    flag = StopFlag(tmp_path / "control", attempt=2)
    assert not flag.poll()
    assert not flag.settle()

"""The spool keeps every whole line, whatever happened to its writer."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.tracking.spool import Spool, curve, curves, last_step, read_points
from tracked_runs import ENVIRONMENT


def test_what_is_written_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    before_ms = time.time_ns() // 1_000_000
    with Spool(path, attempt=3) as spool:
        spool.append(1, {"loss": 2.5, "learning_rate": 1e-4})
        spool.append(2, {"loss": 2.25})
    points = list(read_points(path))
    assert [(p.step, p.attempt, p.values) for p in points] == [
        (1, 3, {"loss": 2.5, "learning_rate": 1e-4}),
        (2, 3, {"loss": 2.25}),
    ]
    assert before_ms <= points[0].time_ms <= points[1].time_ms <= time.time_ns() // 1_000_000
    assert points[-1].end == path.stat().st_size


def test_a_reader_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Spool(path, attempt=1) as spool:
        spool.append(1, {"loss": 2.0})
        (first,) = read_points(path)
        spool.append(2, {"loss": 1.0})
        assert [p.step for p in read_points(path, first.end)] == [2]


def test_a_torn_last_line_is_ignored_by_readers_and_cut_off_by_the_next_attempt(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Spool(path, attempt=1) as spool:
        spool.append(1, {"loss": 2.0})
    with open(path, "ab") as file:
        file.write(b'{"step": 2, "time_ms": 1, "atte')
    assert [p.step for p in read_points(path)] == [1]
    with Spool(path, attempt=2) as spool:
        spool.append(2, {"loss": 1.5})
    assert [(p.step, p.attempt) for p in read_points(path)] == [(1, 1), (2, 2)]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_file_that_is_one_torn_line_longer_than_a_block_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step"' + b"x" * 200_000)
    Spool(path, attempt=1).close()
    assert path.stat().st_size == 0


def test_a_writer_killed_at_any_moment_leaves_a_readable_spool(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    endless = (
        "import sys, itertools; from pathlib import Path; from lockstep.tracking.spool import Spool\n"
        "spool = Spool(Path(sys.argv[1]), attempt=1)\n"
        "for step in itertools.count(): spool.append(step, {f'metric/{i}': step / 3 for i in range(50)})\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", endless, str(path)], env=ENVIRONMENT)
    while not path.exists() or path.stat().st_size < 500_000:
        assert writer.poll() is None
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    with Spool(path, attempt=2) as spool:
        spool.append(10**9, {"loss": 1.0})
    steps = [p.step for p in read_points(path)]
    assert steps == [*range(len(steps) - 1), 10**9]


def test_non_finite_values_survive_as_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Spool(path, attempt=1) as spool:
        spool.append(1, {"nan": math.nan, "up": math.inf, "down": -math.inf})

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    json.loads(path.read_text(), parse_constant=refuse)
    (point,) = read_points(path)
    assert math.isnan(point.values["nan"])
    assert (point.values["up"], point.values["down"]) == (math.inf, -math.inf)


def test_a_replayed_step_counts_once_with_its_last_value(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Spool(path, attempt=1) as spool:
        for step in (1, 2, 3):
            spool.append(step, {"loss": float(step)})
        spool.append(3, {"eval_loss": 9.0})
    with Spool(path, attempt=2) as spool:
        for step in (3, 4):
            spool.append(step, {"loss": 10.0 * step})
    assert curve(path, "loss") == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
    assert curves(path) == {"loss": curve(path, "loss"), "eval_loss": [(3, 9.0)]}
    assert last_step(path) == 4


def test_a_missing_spool_is_empty(tmp_path: Path) -> None:
    assert list(read_points(tmp_path / "none.jsonl")) == []
    assert curve(tmp_path / "none.jsonl", "loss") == []
    assert last_step(tmp_path / "none.jsonl") is None


def test_a_full_disk_raises_and_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Spool(path, attempt=1) as spool:
        spool.append(1, {"loss": 1.0})
        size = path.stat().st_size
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                spool.append(2, {"loss": 0.5})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert path.stat().st_size == size
        spool.append(2, {"loss": 0.5})
    assert [p.step for p in read_points(path)] == [1, 2]

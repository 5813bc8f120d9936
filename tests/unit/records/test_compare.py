"""What `lockstep compare` says of two recorded runs: the verdict, the step at which they part, the first suspect."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import sha256_bytes, write_json
from lockstep.records.compare import Verdict, compare
from lockstep.records.lineup import draw, line_up
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.spool import Spool
from tracked_runs import SFT_PARAMS, begin_attempt, end_attempt, new_run, read_record

PACKAGES = {"torch": "2.13.0", "transformers": "5.8.0", "rich": "15.0.0"}
CODE = {"training/sft/trainer.py": "1" * 64, "data/order.py": "2" * 64}


def recorded(
    folder: Path,
    *,
    parts_at: int | None = None,
    by: float = 0.5,
    weights: str = "same",
    num_processes: int = 2,
    packages: dict[str, str] = PACKAGES,
    code: dict[str, str] = CODE,
    **locks: Any,
) -> RunDirectory:
    """A complete run of ten steps whose loss is another one from step `parts_at` on, by the share `by`."""
    root = new_run(folder / "runs", **locks)
    begin_attempt(root)
    with Spool(root / "metrics.jsonl", attempt=1) as spool:
        for step in range(1, 11):
            factor = 1 + by if parts_at is not None and step >= parts_at else 1.0
            spool.append(step, {"loss": 4 * math.exp(-0.05 * step) * factor, "grad_norm": 1.0})
    end_attempt(root)
    record = read_record(root)
    record["result"]["weights_sha256"] = sha256_bytes(weights.encode())
    record["attempts"][0]["num_processes"] = num_processes
    write_json(root / "run.json", record)
    run = RunDirectory(root)
    write_json(run.lock_detail("packages"), packages)
    write_json(run.lock_detail("code"), code)
    return run


@pytest.fixture
def original(tmp_path: Path) -> RunDirectory:
    return recorded(tmp_path / "original")


def test_equal_bits_are_identical_whatever_the_host(original: RunDirectory, tmp_path: Path) -> None:
    found = compare(original, recorded(tmp_path / "again"))
    assert (found.verdict, found.exit_code, found.differences) == (Verdict.IDENTICAL, 0, [])
    assert [parting.first_step for parting in found.partings] == [None, None]


CULPRITS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "a seed": ({"params": {**SFT_PARAMS, "seed": 43}}, ("parameter", "seed")),
    "a missing row of the data": (
        {"inputs": {"tokens": sha256_bytes(b"one row less"), "model": sha256_bytes(b"model")}},
        ("input", "tokens"),
    ),
    "a flipped byte in the base's weights": (
        {"inputs": {"tokens": sha256_bytes(b"tokens"), "model": sha256_bytes(b"flipped")}},
        ("input", "model"),
    ),
    "a line of the trainer": (
        {"code": CODE | {"training/sft/trainer.py": "3" * 64}},
        ("code", "training/sft/trainer.py"),
    ),
    "another build of torch": ({"packages": PACKAGES | {"torch": "2.13.1", "rich": "15.0.1"}}, ("package", "torch")),
}


@pytest.mark.parametrize("name", list(CULPRITS))
def test_the_change_that_explains_most_stands_first(original: RunDirectory, tmp_path: Path, name: str) -> None:
    change, culprit = CULPRITS[name]
    found = compare(original, recorded(tmp_path / "other", parts_at=4, weights="other", **change))
    assert (found.verdict, found.exit_code) == (Verdict.DIFFERENT, 11)
    assert (found.differences[0].kind, found.differences[0].name) == culprit
    loss = found.partings[0]
    assert (loss.metric, loss.first_step) == ("loss", 4)
    assert loss.largest_relative == pytest.approx(1 / 3)
    assert "equal up to step 3, other bits from step 4 on" in found.text()


def test_bits_that_differ_by_the_number_of_ranks_are_within_tolerance_with_the_reason(
    original: RunDirectory, tmp_path: Path
) -> None:
    other = recorded(tmp_path / "other", parts_at=2, by=1e-6, weights="other", num_processes=1)
    found = compare(original, other)
    assert (found.verdict, found.exit_code) == (Verdict.WITHIN_TOLERANCE, 10)
    assert [(d.kind, d.left, d.right) for d in found.differences] == [("processes", "2 × 1", "1 × 1")]
    assert compare(original, other, tolerance=1e-9).verdict is Verdict.DIFFERENT


def test_more_than_two_runs_give_one_table_beside_the_first(original: RunDirectory, tmp_path: Path) -> None:
    runs = [
        original,
        recorded(tmp_path / "again"),
        recorded(tmp_path / "seed", parts_at=1, weights="other", params={**SFT_PARAMS, "seed": 7}),
    ]
    lineup = line_up(runs)
    assert lineup.exit_code == 11
    assert [row["verdict"] for row in lineup.as_json()["comparisons"]] == ["identical", "different"]
    lines = lineup.text().splitlines()
    assert "seed" in lines[2]
    assert [line.split()[-1] for line in lines if "identical" in line or "different" in line] == ["·", "7"]
    draw(lineup, lineup.text(), tmp_path / "curves.html")
    page = (tmp_path / "curves.html").read_text()
    assert page.count('class="line main"') == page.count('class="line third"') == 2
    assert f"{runs[2].root.name}, step 10" in page


def test_what_cannot_be_compared_or_drawn_is_refused(original: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Name two or more"):
        line_up([original])
    with pytest.raises(UsageError, match="was never begun"):
        compare(original, RunDirectory(new_run(tmp_path / "empty", params={**SFT_PARAMS, "seed": 1})))
    with pytest.raises(UsageError, match="is not a folder"):
        draw(line_up([original, original]), "", tmp_path / "nowhere" / "curves.html")
    with pytest.raises(UsageError, match="tells 5 runs apart"):
        draw(line_up([original] * 6), "", tmp_path / "curves.html")

"""What is sent follows from the spool alone: every value once, replayed steps not again, in whole lines."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.tracking.cursor import MAX_BATCH, Cursor, Sample, SendState
from lockstep.tracking.spool import Spool


def write(path: Path, attempts: list[range], num_keys: int = 1) -> None:
    for number, steps in enumerate(attempts, start=1):
        with Spool(path, attempt=number) as spool:
            for step in steps:
                spool.append(step, {f"m{key}": step + key / 10 for key in range(num_keys)})


def send_all(path: Path, cursor: Cursor) -> list[Sample]:
    sent: list[Sample] = []
    while True:
        samples, cursor = cursor.next_batch(path)
        if not samples:
            return sent
        assert len(samples) <= MAX_BATCH
        sent += samples


@settings(deadline=None, max_examples=40)
@given(
    ends=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    back=st.lists(st.integers(0, 12), min_size=4, max_size=4),
)
def test_over_any_number_of_resumes_each_step_is_sent_once(
    tmp_path_factory: object, ends: list[int], back: list[int]
) -> None:
    path = tmp_path_factory.mktemp("spool") / "metrics.jsonl"  # type: ignore[attr-defined]
    attempts, reached = [], 0
    for forward, behind in zip(ends, back, strict=False):
        start = max(0, reached - behind)
        attempts.append(range(start + 1, start + forward + 1))
        reached = max(reached, start + forward)
    write(path, attempts, num_keys=3)
    sent = send_all(path, Cursor())
    for key in ("m0", "m1", "m2"):
        assert [sample.step for sample in sent if sample.key == key] == list(range(1, reached + 1))


def test_a_metric_that_only_a_later_attempt_has_is_sent_from_its_first_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [range(1, 11)])
    with Spool(path, attempt=2) as spool:
        spool.append(8, {"m0": 8.0, "eval_loss": 1.0})
    assert [sample for sample in send_all(path, Cursor()) if sample.key == "eval_loss"]


def test_a_batch_that_did_not_arrive_is_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [range(1, 1500)], num_keys=2)
    cursor = Cursor()
    lost, _ = cursor.next_batch(path)
    again, behind = cursor.next_batch(path)
    assert lost == again
    following, _ = behind.next_batch(path)
    assert following[0].step == again[-1].step + 1


def test_a_line_longer_than_a_batch_is_taken_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [range(1, 3)], num_keys=2500)
    samples, _ = Cursor().next_batch(path)
    assert [sample.step for sample in samples] == [1] * 2500


def test_the_state_survives_writing_and_is_forgotten_for_another_server(tmp_path: Path) -> None:
    spool, path = tmp_path / "metrics.jsonl", tmp_path / "mlflow.json"
    with Spool(spool, attempt=1) as writer:
        writer.append(1, {"loss": math.nan, "lr": 0.5})
    state = SendState("http://one", run_id="r", described=True)
    _, state.cursors["metrics.jsonl"] = Cursor().next_batch(spool)
    state.save(path)
    assert SendState.load(path, "http://one") == state
    assert state.cursors["metrics.jsonl"].newest == {"loss": None, "lr": 0.5}
    assert SendState.load(path, "http://two") == SendState("http://two")

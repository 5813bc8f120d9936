"""Nodes of an attempt find each other through files, on a port that is free, and who does not come is named."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from lockstep.cluster.meeting import Meeting, MissingNodesError, free_port, read_nodes
from lockstep.cluster.preflight import BadNodeError, check_clock, check_gpus, unfit_nodes

ADDRESSES = {"n1": "127.0.0.1", "n2": "127.0.0.2", "n3": "127.0.0.3"}


def test_all_nodes_get_the_first_ones_offer(tmp_path: Path) -> None:
    offers: dict[str, str] = {}

    def join(node: str) -> None:
        offers[node] = Meeting(tmp_path / "meeting", node, ADDRESSES).gather("run-1", 10)

    threads = [threading.Thread(target=join, args=(node,)) for node in ADDRESSES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(offers.values())) == 1
    assert offers["n3"].startswith("127.0.0.1:")


def test_who_does_not_come_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingNodesError, match="in vain for n2, n3") as error:
        Meeting(tmp_path / "meeting", "n1", ADDRESSES).gather("run-1", 0.1)
    assert error.value.nodes == ["n2", "n3"]


def test_nobody_waits_for_a_node_that_gave_up(tmp_path: Path) -> None:
    verdicts = tmp_path / "preflight.1"
    verdicts.mkdir()
    for node, verdict in {"n1": "ok", "n2": "bad no GPU", "n3": "staged", ".n4": "bad half written"}.items():
        (verdicts / node).write_text(verdict + "\n")
    meeting = Meeting(tmp_path / "meeting", "n1", ADDRESSES)
    with pytest.raises(MissingNodesError, match="waited 0 s"):
        meeting.gather("run-1", 600, lambda: unfit_nodes(verdicts))


def test_a_taken_port_is_not_offered() -> None:
    first = free_port("run-1")
    with socket.socket() as holder:
        holder.bind(("", first))
        assert free_port("run-1") != first
    assert free_port("run-1") == first
    assert free_port("run-2") != first


def test_names_and_addresses_keep_slurms_order(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("node9 10.0.0.9\nnode10 node10.cluster\n")
    assert list(read_nodes(tmp_path / "nodes").items()) == [("node9", "10.0.0.9"), ("node10", "node10.cluster")]


def test_a_clock_that_is_off_is_the_nodes_own_fault() -> None:
    clocks = [1000.0, 1000.2, 1060.0]
    check_clock(clocks, 0)
    check_clock(clocks, 1)
    with pytest.raises(BadNodeError, match=r"\+60 s"):
        check_clock(clocks, 2)


def test_missing_gpus_are_the_nodes_own_fault() -> None:
    check_gpus(8, 8)
    with pytest.raises(BadNodeError, match="7 of 8 GPUs"):
        check_gpus(7, 8)

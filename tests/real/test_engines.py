"""The same locked stages through host, Docker and Apptainer: the same weights, the same lock, the same content."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from pathlib import Path
from typing import Any

import pytest

from real.place import USER, Place

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]
ENGINES = ("host", "docker", "apptainer")


@pytest.fixture(scope="module")
def results(place: Place, image: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The whole tiny recipe by every engine, each with a runs folder of its own; host first."""
    assert image["docker"]["image_id"]
    found = {}
    for engine in ENGINES:
        runs = place.checkout.parent / f"runs-{engine}"
        shutil.rmtree(runs, ignore_errors=True)
        status_before = place.dvc("status", LOCKSTEP_ENGINE=engine, LOCKSTEP_RUNS=str(runs)).stdout
        place.dvc("repro", "--force", LOCKSTEP_ENGINE=engine, LOCKSTEP_RUNS=str(runs))
        found[engine] = {
            "status_before": status_before,
            "lock": (place.checkout / "dvc.lock").read_text(),
            "runs": runs,
            "weights": {stage: _weights(place, stage) for stage in ("sft", "ppo")},
        }
    return found


def _weights(place: Place, stage: str) -> str:
    result = json.loads((place.checkout / "results" / stage / "result.json").read_text())
    return str(result["weights_sha256"])


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_weights_are_the_hosts_bit_for_bit(results: dict[str, dict[str, Any]], engine: str):
    assert results[engine]["weights"] == results["host"]["weights"]


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_one_lock_serves_all_engines(results: dict[str, dict[str, Any]], engine: str):
    assert "up to date" in results[engine]["status_before"]
    assert results[engine]["lock"] == results["host"]["lock"]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_attempt_says_which_engine_ran_it(results: dict[str, dict[str, Any]], engine: str):
    records = list(results[engine]["runs"].glob("*/*/run.json"))
    assert records
    for path in records:
        assert [attempt["engine"] for attempt in json.loads(path.read_text())["attempts"]] == [engine], path


@pytest.mark.parametrize("engine", ENGINES)
def test_every_file_belongs_to_the_user(results: dict[str, dict[str, Any]], place: Place, engine: str):
    user = pwd.getpwnam(USER).pw_uid
    foreign = [
        path
        for root in (results[engine]["runs"], place.checkout / "results")
        for path in Path(root).rglob("*")
        if os.lstat(path).st_uid != user
    ]
    assert foreign == []


def test_environment_id_of_the_image_is_the_venvs(place: Place, image: dict[str, Any]):
    lock = json.loads((place.checkout / "image.lock").read_text())
    assert image["environment_id"] == lock["environments"]["cpu"]["id"]
    assert lock["images"]["cpu"] == image


def test_doctor_finds_the_engines_ready_and_says_who_holds_dvcs_locks(place: Place, image: dict[str, Any]):
    locks = place.checkout / ".dvc" / "tmp" / "rwlock"
    locks.write_text(json.dumps({str(place.checkout): {"write": {"pid": os.getpid(), "cmd": "dvc repro"}}}))
    try:
        findings = json.loads(place.lockstep("doctor", "--json").stdout)
    finally:
        locks.unlink()
    found = {finding["topic"]: finding for finding in findings}
    assert {found[f"engine {engine} (cpu)"]["state"] for engine in ENGINES} == {"fine"}
    assert "image.lock names no" in found["engine docker (cuda)"]["text"]
    assert f"dvc repro (pid {os.getpid()})" in found["dvc locks"]["text"]
    assert found["dvc locks"]["mend"]
    assert not [finding for finding in findings if finding["state"] == "bad"]

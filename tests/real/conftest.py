"""Real Docker, Apptainer and Slurm, one ordinary user: what all tests of this folder stand on is made once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real.cluster import LONG_S, Cluster, login_node
from real.place import BASE_IMAGE, USER, Place, make_place, state
from real.slurm_lab import SlurmLab


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    """A checkout with its venv, on the tiny recipe, as the ordinary user has it after the README's first commands.

    LOCKSTEP_REAL_PLACE names a folder that is kept, so that a second run finds its venv, wheelhouse and image.
    """
    if os.getuid() != 0 or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        pytest.fail("these tests need root and a Docker daemon: run `make test-real`, which sets them up")
    kept = os.environ.get("LOCKSTEP_REAL_PLACE")
    folder = Path(kept or tempfile.mkdtemp(prefix="work-", dir=state()))
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    try:
        made = make_place(folder)
        made.run("make", "setup", "PYTHON=/usr/bin/python3.11")
        made.lockstep("use", "tiny-cpu")
        made.lockstep("fetch")
        yield made
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def image(place: Place) -> dict[str, Any]:
    """The image and the SIF of the locked environment, and what image.lock says about them."""
    shown = place.lockstep("image", "build", "--base", BASE_IMAGE, "--no-compress", "--json").stdout
    facts: dict[str, Any] = json.loads(shown[shown.index("{\n") :])
    return facts


@pytest.fixture(scope="session")
def lab() -> Iterator[SlurmLab]:
    """A Slurm of three nodes, run by the ordinary user."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir=state()))
    folder.chmod(0o755)
    try:
        with SlurmLab(folder, num_nodes=3, user=USER) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def login(place: Place, image: dict[str, Any]) -> Iterator[Path]:
    """A checkout for the cluster, its data prepared and locked by DVC, and the image where the nodes find it."""
    assert image["sif"]["sha256"]
    folder = Path(tempfile.mkdtemp(prefix="login-", dir=state()))
    shutil.chown(folder, USER)
    folder.chmod(0o755)
    try:
        yield login_node(place, folder / "checkout")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(lab: SlurmLab, login: Path) -> Iterator[Cluster]:
    """The login node with an empty runs folder; no job of a test outlives it."""
    runs = Path(tempfile.mkdtemp(prefix="runs-", dir=login.parent))
    shutil.chown(runs, USER)
    yield Cluster(lab, login, runs)
    lab.run("scancel", f"--user={USER}", check=False)
    lab.wait(lambda: not lab.run("squeue", "--noheader").stdout, "the queue to be empty", LONG_S)


@pytest.fixture(scope="session")
def reference(lab: SlurmLab, login: Path) -> str:
    """The weights of two processes on this machine, from the same locks."""
    runs = Path(tempfile.mkdtemp(prefix="runs-", dir=login.parent))
    shutil.chown(runs, USER)
    return Cluster(lab, login, runs).run_here("sft")

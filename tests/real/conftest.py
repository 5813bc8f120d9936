"""Real Docker, real Apptainer, one ordinary user: what all tests of this folder stand on is built once."""

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

from real.place import BASE_IMAGE, Place, make_place, state


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    """A checkout with its venv, on the tiny recipe, as the ordinary user has it after the README's first commands."""
    if os.getuid() != 0 or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        pytest.fail("these tests need root and a Docker daemon: run `make test-real`, which sets them up")
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=state()))
    folder.chmod(0o755)
    try:
        made = make_place(folder)
        made.run("make", "setup", "PYTHON=/usr/bin/python3.11")
        made.lockstep("use", "tiny-cpu")
        made.lockstep("fetch")
        yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def image(place: Place) -> dict[str, Any]:
    """The image and the SIF of the locked environment, and what image.lock says about them."""
    shown = place.lockstep("image", "build", "--base", BASE_IMAGE, "--json").stdout
    facts: dict[str, Any] = json.loads(shown[shown.index("{\n") :])
    return facts

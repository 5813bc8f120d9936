"""A million made-up lines, a quarter of them chats, go through `prepare`'s data path in flat memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak
TESTS = Path(__file__).parents[1]


def test_a_million_texts_in_flat_memory(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])}
    command = [sys.executable, str(TESTS / "made_up_lines.py"), str(tmp_path), "1000000", "30"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    print(seen)
    assert seen["num_samples"] == 1_000_000
    assert seen["grown_mb"] < 150

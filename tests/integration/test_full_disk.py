"""A really full disk: a small tmpfs in a mount namespace, which needs no root where user namespaces are allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from namespaces import mount_namespace

pytestmark = pytest.mark.integration
TESTS = Path(__file__).parents[1]


def test_a_disk_that_fills_up_during_a_save_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])}
    command = [*mount_namespace(), sys.executable, str(TESTS / "full_disk.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert "step 2 was not saved; step 1" in seen["message"]
    assert "No space left on device" in seen["message"]
    assert seen["after"] == {"steps": [1], "left": 0, "loads": 1}
    assert "run.save_total_limit" in seen["too_full"]
    assert seen["then"] == [1, 3]

"""A script of tests/ on two ranks, as torchrun starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def found_by_two_ranks(script: str | None, folder: Path) -> list[dict[str, Any]]:
    """Runs `script FOLDER` on two ranks; returns what each left in FOLDER/found.RANK.json."""
    path = Path(str(script))
    paths = os.pathsep.join([str(path.parent), str(path.parents[1] / "src")])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(path),
            str(folder),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"found.{rank}.json").read_text()) for rank in range(2)]

"""`lockstep fetch` as the command line sees it: a process of its own, so that the host side stays light."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from lockstep.foundation.errors import EXIT_OK


def fetch_all(project: Path) -> dict[str, str]:
    """Gets the data and the model that params.yaml names; returns what was done, by folder.

    The process has said on standard error what went wrong, so a failure only ends this one, with the same exit code.
    """
    command = [sys.executable, "-m", "lockstep.stages.fetch", str(project)]
    environment = {**os.environ, "PYTHONPATH": str(project / "src")}
    done = subprocess.run(command, cwd=project, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != EXIT_OK:
        sys.exit(done.returncode)
    return {str(folder): str(what) for folder, what in json.loads(done.stdout).items()}

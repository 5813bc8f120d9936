"""Where things are on this machine: the checkout, and the runs folder that outlives temporary workspaces."""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.foundation.errors import UsageError
from lockstep.foundation.processes import capture


def project_root(start: Path | None = None) -> Path:
    """The checkout: the nearest folder above `start` (or the working directory) that holds dvc.yaml and src/lockstep.

    Raises UsageError outside of one.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "dvc.yaml").exists() and (folder / "src" / "lockstep").is_dir():
            return folder
    raise UsageError(f"{here} is not in a Lockstep checkout (no dvc.yaml beside src/lockstep).\nChange into one.")


def runs_root(project: Path) -> Path:
    """The absolute runs folder: LOCKSTEP_RUNS, else the line in .lockstep/runs, else `runs/` of the main checkout.

    The main checkout, because `dvc exp run --temp` works in a folder that DVC deletes, and a worktree is short-lived.
    """
    if named := os.environ.get("LOCKSTEP_RUNS"):
        return Path(named).expanduser().resolve()
    main = main_checkout(project)
    local = main / ".lockstep" / "runs"
    if local.exists():
        return Path(local.read_text(encoding="utf-8").strip()).expanduser().resolve()
    return main / "runs"


def main_checkout(project: Path) -> Path:
    """The checkout that a worktree or a DVC workspace copy belongs to; the project itself otherwise."""
    if workspace_of := os.environ.get("DVC_ROOT"):
        return Path(workspace_of).resolve()
    common = capture(["git", "rev-parse", "--path-format=absolute", "--git-common-dir"], cwd=project)
    folder = Path(common.strip()).parent if common else project
    return folder if (folder / "dvc.yaml").exists() else project

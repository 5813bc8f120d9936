"""From a complete run to `results/<stage>/`: what DVC tracks is a copy of the run's outputs, byte for byte."""

from __future__ import annotations

from pathlib import Path

from lockstep.foundation.errors import LockstepError
from lockstep.foundation.files import replace_tree
from lockstep.runs.directory import RunDirectory


def materialise(project: Path, stage: str, directory: RunDirectory, names: tuple[str, ...]) -> None:
    """Makes `results/<stage>/` equal to the run's outputs.

    Raises LockstepError when the run lacks one of the `names` that dvc.yaml promises.
    """
    absent = [name for name in names if not (directory.outputs / name).exists()]
    if absent:
        raise LockstepError(f"{directory.outputs} lacks {', '.join(absent)}; run it anew with LOCKSTEP_FRESH=1.")
    replace_tree(directory.outputs, project / "results" / stage)

"""The process in which a plan is made: it needs torch and a process group of its own, which the caller is spared.

Reads a request (JSON) and writes a plan (JSON), so it runs the same in a venv and in a container.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from lockstep.foundation.errors import LockstepError
from lockstep.foundation.files import read_json, write_json
from lockstep.params.experiment import Experiment
from lockstep.planning.hardware import Asked, hardware_for, with_ranks
from lockstep.planning.results import PLANNED


def main() -> None:
    """Entry point of `python -m lockstep.planning.worker`. An error for people is an answer, too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="holds request.json, gets answer.json")
    folder: Path = parser.parse_args().folder
    _quiet()
    try:
        write_json(folder / "answer.json", answer(read_json(folder / "request.json")))
    except LockstepError as error:
        write_json(folder / "answer.json", {"error": str(error)})
        sys.exit(error.exit_code)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The plan for a request with `name`, `project`, `params`, `asked`, `stages`, `savings`, as plain data."""
    from lockstep.planning.changes import with_suggestions
    from lockstep.planning.plan import Subject, plan_experiment, read_config
    from lockstep.planning.savings import with_savings

    asked = Asked(**request["asked"])
    experiment = Experiment.model_validate(request["params"])
    hardware = hardware_for(experiment, asked)
    experiment = with_ranks(experiment, hardware, asked)
    subject = Subject(experiment, read_config(experiment, Path(request["project"])), hardware)
    plan = plan_experiment(request["name"], subject, tuple(request.get("stages") or PLANNED))
    for index, stage in enumerate(plan.stages):
        improved = with_suggestions(stage, subject)
        plan.stages[index] = with_savings(improved, subject) if request.get("savings") else improved
    return plan.as_json()


def _quiet() -> None:
    """Warnings of libraries about fake tensors and CPU paths mean nothing here."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)


if __name__ == "__main__":
    main()

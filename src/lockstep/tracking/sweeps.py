"""A sweep in MLflow: a parent run, and the runs of its last stage as its children. Sending it again changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.foundation.files import read_json
from lockstep.tracking import described
from lockstep.tracking.cursor import SendState
from lockstep.tracking.mlflow_client import experiment_id
from lockstep.tracking.sender import STATE_FILE

_PARENT_TAG = "mlflow.parentRunId"


def sweep_files(runs_root: Path) -> list[Path]:
    """The records of all sweeps on this machine."""
    return sorted((runs_root / "sweeps").glob("*.json"))


def send_sweep(file: Path, client: Any, uri: str, experiment: str) -> None:
    """Makes the parent where there is none, and hangs those trials below it that MLflow knows.

    Raises what MLflow raises.
    """
    record, runs_root = read_json(file), file.parent.parent
    stage, execution = record["until"], f"sweep-{file.stem}"
    home = experiment_id(client, uri, described.experiment_name(stage, experiment), runs_root)
    found = client.search_runs([home], f"tags.`{described.EXECUTION_TAG}` = '{execution}'", max_results=1)
    parent = (found[0] if found else _create(client, home, execution, record["choices"])).info.run_id
    for trial in record["trials"]:
        root = runs_root / stage / trial["runs"].get(stage, "not begun")
        if (child := SendState.load(root / STATE_FILE, uri).run_id) is not None:
            client.set_tag(child, _PARENT_TAG, parent)
    client.set_terminated(parent)


def _create(client: Any, home: str, execution: str, choices: dict[str, list[Any]]) -> Any:
    run = client.create_run(home, tags={described.EXECUTION_TAG: execution}, run_name=f"sweep of {', '.join(choices)}")
    for name, values in choices.items():
        client.log_param(run.info.run_id, described.metric_key(name), ", ".join(map(str, values)))
    return run

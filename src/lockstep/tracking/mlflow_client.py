"""The door to MLflow: an absolute address, a database made once, and a client that keeps off the screen.

MLflow takes seconds to import, so it is imported here inside functions, never when this module is.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.foundation.files import write_atomic

_SQLITE = "sqlite:///"
_FOR_TRAINING = {"mlflow.experimentKind": "custom_model_development"}
"""Opens an experiment with the pages for training; MLflow's other kind shows traces of chats first."""
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # A server that is away is met again at the next batch; long retries would only delay the end of a run.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def tracking_address(runs_root: Path, configured: str | None) -> str:
    """The MLflow address of runs below `runs_root`: the configured one, else a database beside the runs folder.

    The path is absolute, because MLflow reads a relative one against whatever folder the caller stands in.
    """
    return configured or f"{_SQLITE}{runs_root.resolve().parent / 'mlflow.db'}"


def artifact_folder(runs_root: Path) -> Path:
    """Where artifacts go that belong to the local database."""
    return runs_root.resolve() / ".mlflow"


def connect(uri: str) -> Any:
    """An `MlflowClient` for `uri` that has answered once. Raises what MLflow raises when nothing answers.

    A new sqlite database is made under a lock: MLflow's own lock did not keep first users from breaking each other.
    """
    with database_lock(uri):
        if is_local(uri):
            make_database(database_of(uri))
        return _answering_client(uri)


def make_database(database: Path) -> None:
    """Makes the sqlite database where there is none, under another name first.

    MLflow makes its tables one by one, and a database whose making was cut short can never be opened again.
    """
    if database.exists():
        return
    unfinished = database.with_name(f"{database.name}.new")
    unfinished.unlink(missing_ok=True)
    _answering_client(f"{_SQLITE}{unfinished}")
    write_atomic(database, unfinished.read_bytes())
    unfinished.unlink()


def _answering_client(uri: str) -> Any:
    quieten()
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.search_experiments(max_results=1)
    return client


def experiment_id(client: Any, uri: str, name: str, runs_root: Path) -> str:
    """The id of an experiment, which is made, or brought back from MLflow's bin, if need be."""
    from mlflow.exceptions import MlflowException

    if (found := client.get_experiment_by_name(name)) is None:
        folder = artifact_folder(runs_root).as_uri() if is_local(uri) else None
        try:
            return str(client.create_experiment(name, artifact_location=folder, tags=_FOR_TRAINING))
        except MlflowException:
            # Another run made it a moment ago; if that is not the reason, there is none to be found now.
            if (found := client.get_experiment_by_name(name)) is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def quieten() -> None:
    """Silences MLflow's telemetry, notices and migration log before it is imported; settings of the user stand."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"(mlflow|sqlalchemy|alembic|pydantic)\b.*")


def is_local(uri: str) -> bool:
    """True for a sqlite database, whose artifacts need a folder of ours; a server has its own."""
    return uri.startswith(_SQLITE)


def database_of(uri: str) -> Path:
    """The file of a sqlite address."""
    return Path(uri.removeprefix(_SQLITE))


@contextlib.contextmanager
def database_lock(uri: str) -> Iterator[None]:
    """Held while something opens the local database for the first time and may have to make it."""
    if not is_local(uri):
        yield
        return
    database = database_of(uri)
    database.parent.mkdir(parents=True, exist_ok=True)
    with open(database.with_name(f"{database.name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _database(uri: str) -> Path:
    return Path(uri.removeprefix(_SQLITE))


if __name__ == "__main__":
    make_database(Path(sys.argv[1]))

"""`lockstep ui`: MLflow's own web interface over this checkout's runs, with little memory, for this machine only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from lockstep.foundation.errors import LockstepError
from lockstep.params.run import RunParams
from lockstep.tracking import mlflow_client
from lockstep.tracking.mlflow_client import (
    artifact_folder,
    database_lock,
    database_of,
    is_local,
    quieten,
    tracking_address,
)
from lockstep.tracking.provenance import variables, without_credentials

LOG = "server.log"
_FOR_TRAINING = "workflowType=machine_learning"
_HOST = "127.0.0.1"
_PREFERRED_PORT = 5000
_START_S = 120.0
_POLL_S = 0.2
_STOP_S = 10.0


def serve(runs_root: Path, parameters: RunParams, port: int | None = None, host: str = _HOST) -> int:
    """Serves until Ctrl-C and returns the exit code. Where runs are tracked on a server, only names its address.

    `host` is the address to listen on; anybody who reaches another one than the default can see and change the runs.

    Raises LockstepError when the port is taken or the server does not come up, with what it printed.
    """
    uri = tracking_address(runs_root, parameters.tracking_uri)
    if not is_local(uri):
        _say(f"Runs are tracked on a server: open {without_credentials(uri)}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with running(runs_root, port, host) as server:
        _say(f"MLflow: {server.url}/#/experiments?{_FOR_TRAINING}   (Ctrl-C ends it)")
        for name, page in server.experiment_pages().items():
            _say(f"  {name:<24} {page}")
        with contextlib.suppress(KeyboardInterrupt):
            server.process.wait()
        return 0


def comparison_page(run_ids: list[str], experiment_ids: list[str]) -> str:
    """The page that puts MLflow runs side by side, below the server's address."""
    runs, experiments = (quote(json.dumps(ids, separators=(",", ":"))) for ids in (run_ids, experiment_ids))
    return f"/#/compare-runs?runs={runs}&experiments={experiments}&{_FOR_TRAINING}"


class Server:
    """An MLflow server process of ours."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self._log = process, url, log

    def answers(self) -> bool:
        """True once it serves. Raises LockstepError when it has ended instead."""
        if self.process.poll() is not None:
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
            raise LockstepError(f"The MLflow server ended at once. The end of {self._log}:\n" + "\n".join(said))
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:  # noqa: S310 - our own server
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def experiment_pages(self) -> dict[str, str]:
        """The page of each experiment of ours. Asked over HTTP: MLflow's client would cost this process 200 MB."""
        query = json.dumps({"max_results": 1000, "order_by": ["name ASC"]}).encode()
        url = f"{self.url}/api/2.0/mlflow/experiments/search"
        request = urllib.request.Request(url, query, {"Content-Type": "application/json"})  # noqa: S310 - our own server
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            experiments = json.load(answer)["experiments"]
        pages = {e["name"]: f"/#/experiments/{e['experiment_id']}/runs?{_FOR_TRAINING}" for e in experiments}
        return {name: self.url + page for name, page in pages.items() if name != "Default"}

    def stop(self) -> None:
        """Ends it and its workers."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=_STOP_S)


@contextlib.contextmanager
def running(runs_root: Path, port: int | None = None, host: str = _HOST) -> Iterator[Server]:
    """A server over the local database of `runs_root`, answering; ended on the way out."""
    uri, folder = tracking_address(runs_root, None), artifact_folder(runs_root)
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port(host)
    with contextlib.ExitStack() as at_the_end:
        with database_lock(uri):
            _make_database_apart(uri)
            process = _start(_command(uri, folder, port, host), folder / LOG)
            server = Server(process, f"http://{host}:{port}", folder / LOG)
            at_the_end.callback(server.stop)
            _wait_for(server)
        yield server


def _make_database_apart(uri: str) -> None:
    """Where there is no database yet, makes it in a process that then gives MLflow's memory back."""
    if not database_of(uri).exists():
        subprocess.run(
            [sys.executable, "-m", mlflow_client.__name__, str(database_of(uri))], env=variables(), check=True
        )


def _start(command: list[str], log_file: Path) -> subprocess.Popen[bytes]:
    with open(log_file, "wb") as log:
        return subprocess.Popen(
            command,
            env={**variables(), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def free_port(host: str = _HOST) -> int:
    """MLflow's usual port, or any other that is free."""
    for candidate in (_PREFERRED_PORT, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, candidate))
            return int(probe.getsockname()[1])
    raise LockstepError(f"No port is free on {host}.")


def _command(uri: str, artifacts: Path, port: int, host: str) -> list[str]:
    """One worker and no job runner: the default starts ten processes and takes five times the memory."""
    quieten()
    server = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    if host != _HOST:
        # MLflow answers 403 to any name that it was not told; through a tunnel it is asked for as localhost.
        server += ["--allowed-hosts", ",".join(f"{name}:{port}" for name in (host, "localhost", _HOST))]
    return [*server, "--backend-store-uri", uri, "--default-artifact-root", artifacts.as_uri(), "--no-serve-artifacts"]


def _wait_for(server: Server) -> None:
    deadline = time.monotonic() + _START_S
    while not server.answers():
        if time.monotonic() > deadline:
            raise LockstepError(f"The MLflow server did not answer within {_START_S:.0f} s.")
        time.sleep(_POLL_S)


def _say(line: str) -> None:
    print(line, flush=True)

"""MLflow ends up with every point once, whatever happened on the way; training never notices."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from file_events import FileEvents
from lockstep.foundation.files import sha256_file, write_json
from lockstep.params.run import RunParams
from lockstep.tracking.mlflow_client import connect, tracking_address
from lockstep.tracking.sender import RunSender
from lockstep.tracking.spool import Spool, curve
from lockstep.tracking.sync import sync, watch
from lockstep.tracking.tracker import Tracker
from tracked_runs import ENVIRONMENT, begin_attempt, end_attempt, new_run, train

QUICK = RunParams(tracking_flush_s=0.1)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def local(runs: Path) -> tuple[Any, str]:
    uri = tracking_address(runs, None)
    return connect(uri), uri


def the_run(client: Any) -> Any:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (run,) = client.search_runs(experiments)
    return run


def history(client: Any, run: Any, key: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key)]


def test_one_execution_over_two_attempts_is_one_run_without_repeated_steps(runs: Path) -> None:
    root = new_run(runs)
    for steps, status in ((range(1, 13), "stopped"), (range(11, 21), "complete")):
        attempt = begin_attempt(root)
        with Tracker(root, QUICK, runs):
            train(root, attempt, steps)
            end_attempt(root, status, start_step=steps.start, end_step=steps.stop - 1)
    client, _ = local(runs)
    run = the_run(client)
    assert run.info.status == "FINISHED"
    assert history(client, run, "loss") == curve(root / "metrics.jsonl", "loss")
    assert [step for step, _ in history(client, run, "eval_loss")] == [5, 10, 15, 20]
    points = [metric.timestamp for metric in client.get_metric_history(run.info.run_id, "loss")]
    assert points == sorted(points)
    assert "attempt 2: complete, steps 11 to 20" in run.data.tags["mlflow.note.content"]


def test_mlflow_is_told_what_decided_the_run_and_where_it_came_from(runs: Path) -> None:
    root = new_run(runs)
    (root / "dirty.diff").write_text("+ changed\n")
    write_json(root / "outputs" / "metrics.json", {"perplexity": {"base": 30.5}, "gain_ci95": [0.1, 0.3]})
    attempt = begin_attempt(root)
    with Tracker(root, QUICK, runs):
        train(root, attempt, range(1, 6))
        end_attempt(root)
    client, _ = local(runs)
    run = the_run(client)
    assert client.get_experiment(run.info.experiment_id).name == "lockstep/sft"
    assert run.info.run_name == f"smollm2-135m-instruct-{root.name[:6]}"
    assert run.data.params["sft.learning_rate"] == "0.0001"
    assert run.data.params["sft.betas"] == "[0.9, 0.95]"
    assert not any(key.startswith("run.") for key in run.data.params)
    for tag in ("git.commit", "environment.id", "params.sha256", "input.tokens.sha256", "world_size", "weights.sha256"):
        assert run.data.tags[tag]
    assert run.data.tags["git.commit"] == run.data.tags["mlflow.source.git.commit"]
    (data_set,) = run.inputs.dataset_inputs
    assert run.data.tags["input.tokens.sha256"].startswith(data_set.dataset.digest)
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"dirty.diff", "run.json", "results"}
    assert run.data.metrics["result/perplexity.base"] == 30.5
    assert run.data.metrics["result/gain_ci95.1"] == 0.3
    assert run.data.metrics["system/system_memory_usage_megabytes"] > 10


def test_checkpoints_are_registered_once_with_the_metrics_of_their_step(runs: Path) -> None:
    root = new_run(runs)
    attempt = begin_attempt(root)
    train(root, attempt, range(1, 13))
    for step in (5, 10):
        manifest = root / "checkpoints" / f"step-{step}" / "manifest.json"
        write_json(manifest, {"step": step, "world_size": 2})
    (root / "checkpoints" / "step-12.tmp").mkdir()
    end_attempt(root)
    client, uri = local(runs)
    for _ in range(2):
        sender = RunSender(root, client, uri, "lockstep")
        sender.open()
        sender.close()
        (root / "mlflow.json").unlink()  # a crash before the notes were written
    run = the_run(client)
    models = client.search_logged_models([run.info.experiment_id])
    assert sorted(model.name for model in models) == [f"{run.info.run_name}-step-{step}" for step in (10, 5)]
    model = next(model for model in models if model.name.endswith("-5"))
    manifest = root / "checkpoints" / "step-5" / "manifest.json"
    assert model.params["manifest_sha256"] == sha256_file(manifest)
    assert model.params["path"] == str(manifest.parent)
    assert str(model.status) == "READY"
    assert {metric.key: metric.value for metric in model.metrics}["eval_loss"] == curve_at(root, "eval_loss", 5)
    assert history(client, run, "loss") == curve(root / "metrics.jsonl", "loss")
    assert {m.params["step"]: (m.tags["alias"], m.tags["pruned"]) for m in models} == {
        "5": ("", "false"),
        "10": ("last best", "false"),
    }
    shutil.rmtree(root / "checkpoints" / "step-10")
    sender.close()
    models = client.search_logged_models([run.info.experiment_id])
    assert {m.params["step"]: (m.tags["alias"], m.tags["pruned"]) for m in models} == {
        "5": ("last best", "false"),
        "10": ("", "true"),
    }


def curve_at(root: Path, key: str, step: int) -> float:
    return dict(curve(root / "metrics.jsonl", key))[step]


@pytest.mark.parametrize(("status", "word"), [("failed", "FAILED"), ("stopped", "KILLED"), ("running", "KILLED")])
def test_a_run_that_did_not_end_well_does_not_look_finished(runs: Path, status: str, word: str) -> None:
    root = new_run(runs)
    train(root, begin_attempt(root), range(1, 4))
    if status != "running":
        end_attempt(root, status)
    client, uri = local(runs)
    summary = sync(runs, uri, "lockstep")
    assert list(summary.sent.values()) == [6]
    assert the_run(client).info.status == word


def test_watching_sends_what_is_added_and_ends_with_ctrl_c(runs: Path) -> None:
    root = new_run(runs)
    train(root, begin_attempt(root), range(1, 4))
    end_attempt(root)
    client, uri = local(runs)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            raise KeyboardInterrupt
        train(root, begin_attempt(root), range(4, 6))
        end_attempt(root)

    watch(runs, uri, "lockstep", every_s=0.01, say=say)
    assert "6 values sent" in said[0]
    assert "5 values sent" in said[1]
    assert [step for step, _ in history(client, the_run(client), "loss")] == [1, 2, 3, 4, 5]


def test_a_run_whose_parent_is_alive_is_left_to_it(runs: Path) -> None:
    root = new_run(runs)
    begin_attempt(root)
    client, uri = local(runs)
    with Tracker(root, QUICK, runs):
        wait_until(lambda: len(client.search_experiments()) == 2)
        assert sync(runs, uri, "lockstep").going_on == [f"sft/{root.name}"]
        end_attempt(root)
    assert sync(runs, uri, "lockstep").up_to_date == [f"sft/{root.name}"]


def test_two_first_users_of_a_new_database_all_get_through_also_after_one_that_was_killed(runs: Path) -> None:
    uri = tracking_address(runs, None)
    code = "import sys; from lockstep.tracking.mlflow_client import connect; connect(sys.argv[1]).search_experiments()"
    command = [sys.executable, "-c", code, uri]
    with FileEvents(runs.parent) as events:  # its tables half made
        killed = subprocess.Popen(command, env=ENVIRONMENT)
        next(path for path, _ in events.follow(120) if path.name == "mlflow.db.new" and path.stat().st_size > 0)
        killed.kill()
    killed.wait()
    assert not (runs.parent / "mlflow.db").exists()
    users = [subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outcomes = [(user.communicate()[1], user.returncode) for user in users]
    assert outcomes == [("", 0)] * len(users)


def test_importing_the_tracker_is_quick_and_loads_neither_mlflow_nor_torch() -> None:
    code = (
        "import sys, time, pydantic, psutil; start = time.process_time()\n"
        "import lockstep.tracking.tracker, lockstep.tracking.sync, lockstep.tracking.ui, lockstep.tracking.provenance\n"
        "assert not {'mlflow', 'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
        "assert time.process_time() - start < 0.5\n"
    )
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True)


class Server:
    """An `mlflow server` of our own that can be killed and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, database: str) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(self._port)]
        command += ["--backend-store-uri", f"sqlite:///{self._folder / database}"]
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with open(self._folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        wait_until(self._answers)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{self.uri}/health", timeout=1).status == 200)
        return False

    def kill(self) -> None:
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def wait_until(condition: Any, limit_s: float = 200) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        threading.Event().wait(0.1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


def test_a_server_that_is_down_dies_and_forgets_still_gets_every_point_once(
    runs: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = RunParams(tracking_flush_s=0.1, tracking_uri=server.uri)
    # Down for the whole of a run: it goes on, and says so once.
    down = new_run(runs)
    with Tracker(down, parameters, runs):
        train(down, begin_attempt(down), range(1, 21))
        end_attempt(down)
    assert capsys.readouterr().err.count("lockstep sync") == 1

    # Killed in the middle of another one.
    killed = new_run(runs, code="another")
    server.start("first.db")
    attempt = begin_attempt(killed)
    with Tracker(killed, parameters, runs):
        train(killed, attempt, range(1, 11))
        wait_until(lambda: points(server.uri, killed, "loss") == 10)
        server.kill()
        train(killed, attempt, range(11, 21))
        end_attempt(killed)
    assert capsys.readouterr().err.count("lockstep sync") == 1

    # Back with a fresh database: after one sync every point of both runs is there once.
    server.start("fresh.db")
    assert len(sync(runs, server.uri, "lockstep").sent) == 2
    assert_whole(server.uri, (down, killed))
    assert sync(runs, server.uri, "lockstep").sent == {}
    assert capsys.readouterr() == ("", "")


def test_a_database_that_is_older_than_our_notes_gets_what_it_lacks(runs: Path, tmp_path: Path) -> None:
    root, (client, uri) = new_run(runs), local(runs)
    train(root, begin_attempt(root), range(1, 11))
    sync(runs, uri, "lockstep")
    with sqlite3.connect(tmp_path / "mlflow.db") as database, sqlite3.connect(":memory:") as copy:
        database.backup(copy)
        train(root, 1, range(11, 21))
        end_attempt(root)
        assert sum(sync(runs, uri, "lockstep").sent.values()) == 22
        copy.backup(database)
    assert len(sync(runs, uri, "lockstep").sent) == 1
    run = the_run(client)
    assert run.info.status == "FINISHED"
    assert history(client, run, "loss") == curve(root / "metrics.jsonl", "loss")


def points(uri: str, root: Path, key: str) -> int:
    client = connect(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.`lockstep.run_id` = '{root.name}'")
    return len(history(client, found[0], key)) if found else 0


def assert_whole(uri: str, roots: tuple[Path, ...]) -> None:
    client = connect(uri)
    (experiment,) = [e.experiment_id for e in client.search_experiments() if e.name == "lockstep/sft"]
    for root in roots:
        (run,) = client.search_runs([experiment], f"tags.`lockstep.run_id` = '{root.name}'")
        assert run.info.status == "FINISHED"
        for key in ("loss", "learning_rate", "eval_loss"):
            assert history(client, run, key) == curve(root / "metrics.jsonl", key)


@pytest.mark.parametrize("num_points", [10_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_long_offline_run_is_synced_in_under_a_minute_per_100_000_points(runs: Path, num_points: int) -> None:
    root = new_run(runs)
    with Spool(root / "metrics.jsonl", attempt=begin_attempt(root)) as spool:
        for step in range(1, num_points // 10 + 1):
            spool.append(step, {f"metric/{i}": step + i / 10 for i in range(10)})
    end_attempt(root)
    client, uri = local(runs)
    start = time.process_time()  # on a machine that does nothing else; other tests may share this one
    summary = sync(runs, uri, "lockstep")
    elapsed_s = time.process_time() - start
    print(f"{num_points} points in {elapsed_s:.1f} s")
    assert summary.sent == {f"sft/{root.name}": num_points}
    assert elapsed_s < 60 * num_points / 100_000
    assert history(client, the_run(client), "metric/7") == curve(root / "metrics.jsonl", "metric/7")

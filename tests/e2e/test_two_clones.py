"""The tiny recipe in two clones (another folder, another home, no shared cache): the same bits and the same lock."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from browser import browser, needs_chromium
from e2e.clones import STAGES, Clone
from file_events import FileEvents
from lockstep.tracking.mlflow_client import connect, tracking_address
from lockstep.tracking.spool import last_step
from lockstep.tracking.ui import running
from mlflow_pages import look_at_comparison
from tiny_clone import set_parameters

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> list[Clone]:
    made = [
        Clone.make(tmp_path_factory.mktemp(name), share_environment=True) for name in ("first", "zweiter Ordner, ä")
    ]
    for clone in made:
        clone.run("./lockstep", "use", "tiny-cpu")
        clone.run("./lockstep", "repro")
    return made


def test_locks_and_weights_are_equal(clones: list[Clone]) -> None:
    first, second = clones
    assert (first.path / "dvc.lock").read_bytes() == (second.path / "dvc.lock").read_bytes()
    for stage in ("sft", "reward", "ppo"):
        weights = [clone.result(stage)["weights_sha256"] for clone in clones]
        assert weights[0] == weights[1]
        print(f"{stage}: weights_sha256 {weights[0]} in both clones")


def test_nothing_to_do_the_second_time(clones: list[Clone]) -> None:
    first = clones[0]
    attempts = {stage: len(first.record(stage)["attempts"]) for stage in STAGES}
    assert "Nothing to do" in first.run("./lockstep", "repro").stdout
    assert {stage: len(first.record(stage)["attempts"]) for stage in STAGES} == attempts == dict.fromkeys(STAGES, 1)


def test_a_colleague_takes_results_from_a_shared_remote_and_makes_them_again(
    clones: list[Clone], tmp_path: Path
) -> None:
    remote = ("dvc", "remote", "add", "--quiet", "--local", "--default", "team", str(tmp_path / "remote"))
    first, colleague = clones[0], Clone.make(tmp_path / "colleague", share_environment=True)
    first.run(*remote)
    first.run("dvc", "push", "--quiet")
    for name in ("dvc.lock", "params.yaml"):
        shutil.copy2(first.path / name, colleague.path / name)
    colleague.run(*remote)
    colleague.run("dvc", "pull", "--quiet")
    assert colleague.result("evaluate", "metrics.json") == first.result("evaluate", "metrics.json")
    colleague.run("./lockstep", "fetch")
    colleague.run("./lockstep", "repro")
    assert {path.parts[-3] for path in (colleague.path / "runs").glob("*/*/run.json")} == {"report"}
    assert (colleague.path / "dvc.lock").read_bytes() == (first.path / "dvc.lock").read_bytes()
    refused = colleague.run("./lockstep", "run", "ppo", check=False)
    assert refused.returncode == 2
    assert f"./lockstep pull {first.result('sft')['run_id']}" in refused.stderr
    for stage in ("prepare", "sft", "reward", "ppo"):
        first.run("./lockstep", "push", stage)
    colleague.run("./lockstep", "pull", colleague.result("ppo")["run_id"])
    again = colleague.run("./lockstep", "rerun", "ppo", check=False)
    assert (again.returncode, "identical" in again.stdout) == (0, True)
    assert f"sft run {first.result('sft')['run_id']} is not here; asking the DVC remote for it" in again.stderr


def test_deleted_results_come_back_without_training(clones: list[Clone]) -> None:
    first = clones[0]
    lock = (first.path / "dvc.lock").read_bytes()
    for stage in STAGES:
        for out in (first.path / "results" / stage).iterdir():
            first.run("rm", "-rf", str(out))
    first.run("rm", "-rf", ".dvc/cache", "dvc.lock")
    assert "complete already" in first.run("./lockstep", "repro").stdout
    assert (first.path / "dvc.lock").read_bytes() == lock
    assert len(first.record("sft")["attempts"]) == 1


def test_operational_parameters_re_run_nothing(clones: list[Clone]) -> None:
    first = clones[0]
    params = first.path / "params.yaml"
    before = params.read_text()
    params.write_text(before.replace("save_steps: 3", "save_steps: 4"))
    assert "Nothing to do" in first.run("./lockstep", "repro").stdout
    params.write_text(before)


def test_a_sweep_runs_only_what_is_new_and_hangs_its_trials_below_one_parent(clones: list[Clone]) -> None:
    first = clones[0]
    before = {name: (first.path / name).read_bytes() for name in ("params.yaml", "dvc.lock")}
    swept = first.run("./lockstep", "sweep", "-S", "sft.learning_rate=3.0e-3,1.0e-3", "--to", "sft", "--json")
    old, new = json.loads(swept.stdout[swept.stdout.index("\n[") :])
    assert old["run_id"] == first.result("sft")["run_id"]
    assert swept.stdout.count("complete.") == 1
    assert new["metrics"]["train_loss"] != old["metrics"]["train_loss"]
    assert {name: (first.path / name).read_bytes() for name in before} == before
    client = connect(tracking_address(first.path / "runs", None))
    home = client.get_experiment_by_name("lockstep/sft").experiment_id
    (parent,) = client.search_runs([home], "attributes.run_name = 'sweep of sft.learning_rate'")
    children = client.search_runs([home], f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    assert {run.data.tags["lockstep.run_id"] for run in children} == {old["run_id"], new["run_id"]}


def test_another_seed_gives_other_weights_and_dvc_shows_the_difference(clones: list[Clone]) -> None:
    second = clones[1]
    second.run("git", "add", "-f", "dvc.lock", "params.yaml")
    second.run("git", "commit", "-qm", "the tiny recipe")
    before = second.result("sft")["weights_sha256"]
    second.run("dvc", "exp", "run", "-S", "seed=43", "-S", "sft.learning_rate=1e-3")
    assert second.result("sft")["weights_sha256"] != before
    assert "seed" in second.run("dvc", "params", "diff").stdout
    assert "evaluate" in second.run("dvc", "metrics", "diff", "--json").stdout
    assert json.loads(second.run("dvc", "plots", "show", "--json").stdout)["data"]
    assert "seed" in second.run("dvc", "exp", "show", "--csv").stdout


@needs_chromium
def test_the_mlflow_ui_shows_how_two_dvc_experiments_differ(clones: list[Clone]) -> None:
    runs = clones[1].path / "runs"
    client = connect(tracking_address(runs, None))
    found = client.search_runs([client.get_experiment_by_name("lockstep/sft").experiment_id])
    with running(runs) as server, browser() as page:
        look_at_comparison(page, server, found, "sft.learning_rate", {"0.003", "0.001"})


def test_a_rerun_is_identical_and_a_changed_seed_is_the_first_suspect(clones: list[Clone]) -> None:
    second = clones[1]
    runs = sorted((second.path / "runs" / "sft").iterdir(), key=lambda path: path.stat().st_mtime)
    changed, original = runs[-1].name, runs[0].name
    compared = second.run("./lockstep", "compare", original, changed, "--json", check=False)
    assert compared.returncode == 11
    assert json.loads(compared.stdout)["differences"][0]["name"] in ("seed", "sft.learning_rate")
    again = second.run("./lockstep", "rerun", changed, "--json", check=False)
    assert again.returncode == 0, again.stdout
    assert json.loads(again.stdout[again.stdout.index("\n{") :])["verdict"] == "identical"


def test_bad_parameters_start_nothing(clones: list[Clone]) -> None:
    first = clones[0]
    params = first.path / "params.yaml"
    before = params.read_text()
    params.write_text(before.replace("  learning_rate", "  learnig_rate", 1))
    done = first.run("./lockstep", "run", "sft", check=False)
    params.write_text(before)
    assert done.returncode == 2
    assert "Did you mean 'learning_rate'?" in done.stderr


def test_the_screen_and_the_files_hold_no_secret(clones: list[Clone]) -> None:
    first = clones[0]
    done = first.run("./lockstep", "run", "evaluate", LOCKSTEP_FRESH="1", HF_TOKEN="hf_secret_1234567890")
    assert "hf_secret" not in done.stdout + done.stderr
    found = [path for path in (first.path / "runs").rglob("*") if path.is_file() and _holds(path, b"hf_secret")]
    assert not found


def test_a_killed_dvc_leaves_no_process_and_the_next_one_goes_on(clones: list[Clone]) -> None:
    first = clones[0]
    set_parameters(first, sft={"max_steps": 40})
    with FileEvents(first.path / "runs" / "sft") as events:
        dvc = subprocess.Popen(
            ["python", "-m", "dvc", "repro", "sft"],
            cwd=first.path,
            env=first.environment({}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        run = next(p for p, _ in events.follow(120) if p.name == "metrics.jsonl" and (last_step(p) or 0) > 3).parent
        family = psutil.Process(dvc.pid).children(recursive=True)
        dvc.kill()
        dvc.wait()
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not alive
    first.run("dvc", "repro", "sft")
    attempts = json.loads((run / "run.json").read_text())["attempts"]
    assert [attempt["end_step"] for attempt in attempts][-1] == 40
    assert len(attempts) == 2
    assert attempts[1]["start_step"] == attempts[0]["end_step"] > 0


def _holds(path: Path, text: bytes) -> bool:
    return os.access(path, os.R_OK) and text in path.read_bytes()

"""The long cases on a real Slurm (make soak): time limits, a node's death, arrays, no progress, chains, two sites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from real.cluster import LONG_S, NUM_STEPS, SAVE_STEPS, Cluster, parameters, site

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(3600)]


def test_a_time_limit_in_the_middle_of_training(cluster: Cluster, reference: str):
    """Slurm's shortest limit is a minute, so the steps are the slow part: the run waits before each of them."""
    with parameters(cluster.checkout, sft__max_steps=2000):
        submitted = cluster.submit("sft", "--nodes", "2", "--sbatch=--time=2", "--sbatch=--signal=B:USR2@60")[0]
    run = Path(submitted["run"])
    cluster.lab.wait(lambda: "saved on a signal" in cluster.causes(run), "the announced time limit", LONG_S)
    first = cluster.record(run)["attempts"][0]
    assert first["checkpoint_after"] == first["end_step"] > SAVE_STEPS
    cluster.wait_for_step(run, first["end_step"] + 1, attempt=2)
    assert cluster.record(run)["attempts"][1]["slurm"]["job_id"] == submitted["job_id"]


def test_the_death_of_a_node(cluster: Cluster, reference: str):
    submitted = cluster.submit("sft", "--nodes", "2", "--sbatch=--nodelist=n2,n3")[0]
    run, job = Path(submitted["run"]), submitted["job_id"]
    cluster.wait_for_step(run, SAVE_STEPS + 2)
    cluster.lab.kill_node("n3")
    cluster.lab.wait(lambda: cluster.lab.state(job) == "PENDING", "the requeue after the node's death", LONG_S)
    cluster.lab.start_node("n3")
    assert cluster.wait_for_end(job) == "COMPLETED", cluster.log(job)
    assert cluster.causes(run)[-1] == "done"
    assert cluster.weights(run) == reference
    assert cluster.left_over(run) == []


def test_an_array_of_three_of_which_one_is_requeued(cluster: Cluster, reference: str):
    grid = cluster.runs / "grid.yaml"
    grid.write_text("seed: [42, 1, 2]\n")
    submitted = cluster.submit("sft", "--grid", str(grid))
    array = submitted[0]["job_id"].split("_")[0]
    runs = [Path(task["run"]) for task in submitted]
    cluster.wait_for_step(runs[0], SAVE_STEPS + 2)
    cluster.lab.run("scontrol", "requeue", f"{array}_0")
    for task in submitted:
        cluster.lab.wait(lambda run=task["run"]: cluster.record(run)["status"] == "complete", "a task", 2 * LONG_S)
    assert [cluster.causes(run) for run in runs] == [["requeued", "done"], ["done"], ["done"]]
    assert cluster.weights(runs[0]) == reference
    assert len({cluster.weights(run) for run in runs}) == 3
    said = json.loads(cluster.lockstep("finish", runs[0].name, "--json").stdout)
    assert {row["run_id"] for row in said["others"]} == {run.name for run in runs[1:]}


def test_attempts_without_progress_end_for_good(cluster: Cluster):
    with site(cluster, LOCKSTEP_MAX_WITHOUT_PROGRESS="2"), parameters(cluster.checkout, run__save_steps=NUM_STEPS):
        submitted = cluster.submit("sft", "--nodes", "2")[0]
    run, job = Path(submitted["run"]), submitted["job_id"]
    for attempt in (1, 2):
        cluster.wait_for_step(run, 2, attempt)
        cluster.kill_rank(run, 0)
        cluster.lab.wait(
            lambda n=attempt: len([c for c in cluster.causes(run) if c == "failed"]) >= n, "its end", LONG_S
        )
    assert cluster.wait_for_end(job) == "FAILED"
    assert cluster.lab.job(job)["ExitCode"] == "93:0"


def test_the_chain_comes_home_and_a_second_site_goes_on_from_it(cluster: Cluster):
    with parameters(cluster.checkout, run__save_steps=SAVE_STEPS, sft__max_steps=6):
        submitted = cluster.submit("--all")
        for stage in submitted:
            if stage["job_id"]:
                assert cluster.wait_for_end(stage["job_id"]) == "COMPLETED", cluster.log(stage["job_id"])
        said = json.loads(cluster.lockstep("finish", "--all", "--json").stdout)
        assert [name.split()[0] for name in said["brought_home"]] == ["sft", "reward", "ppo", "evaluate"]
        dvc = str(cluster.checkout / ".venv/bin/dvc")
        status = cluster.lab.run(dvc, "status", "sft", "reward", "ppo", "evaluate", cwd=cluster.checkout).stdout
        assert "up to date" in status

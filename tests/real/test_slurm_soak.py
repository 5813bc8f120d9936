"""The long cases on a real Slurm (make soak): time limits, a node's death, arrays, no progress, chains, two sites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from real.cluster import LONG_S, NUM_STEPS, SAVE_STEPS, Cluster, parameters, site

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(3600)]


def test_time_limits_in_the_middle_of_training(cluster: Cluster):
    """Slurm's limits are whole minutes, so this run takes more steps than fit into one of them."""
    with parameters(cluster.checkout, sft__max_steps=1200, run__save_steps=50):
        submitted = cluster.submit("sft", "--nodes", "2", "--sbatch=--time=2", "--sbatch=--signal=B:USR2@30")[0]
        reference = cluster.run_here("sft")
    run, job = Path(submitted["run"]), submitted["job_id"]
    assert cluster.wait_for_end(job, timeout_s=4 * LONG_S) == "COMPLETED", cluster.log(job)
    causes = cluster.causes(run)
    assert set(causes[:-1]) == {"saved on a signal"}
    first, second = cluster.record(run)["attempts"][:2]
    assert first["end_step"] == first["checkpoint_after"] == second["start_step"] > 0
    assert cluster.weights(run) == reference
    assert cluster.left_over(run) == []


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
    checkout, git, dvc = cluster.checkout, cluster.git, cluster.dvc
    for stage in cluster.submit("--all"):
        if stage["job_id"]:
            assert cluster.wait_for_end(stage["job_id"]) == "COMPLETED", cluster.log(stage["job_id"])
    said = json.loads(cluster.lockstep("finish", "--all", "--json").stdout)
    assert [name.split()[0] for name in said["brought_home"]] == ["prepare", "sft", "reward", "ppo", "evaluate"]
    assert "up to date" in dvc(checkout, "status", "prepare", "sft", "reward", "ppo", "evaluate").stdout

    remote, away = cluster.runs / "remote", cluster.runs / "away"
    git(checkout, "commit", "--quiet", "--all", "--message", "What the cluster made")
    dvc(checkout, "remote", "add", "--local", "--default", "shared", str(remote))
    dvc(checkout, "push", "--quiet")
    sft = json.loads((checkout / "results/sft/result.json").read_text())["run_id"]
    assert "sent" in cluster.lockstep("push", "sft").stdout

    git(checkout, "clone", "--quiet", str(checkout), str(away))
    for name in (".venv", "data"):
        (away / name).symlink_to((checkout / name).resolve())
    dvc(away, "remote", "add", "--local", "--default", "shared", str(remote))
    dvc(away, "pull", "--quiet")
    up_to_date = dvc(away, "repro", "evaluate").stdout
    assert "is cached" not in up_to_date
    assert not (away / "runs").exists(), "the second site ran again what the cluster had run"

    with parameters(away, evaluate__num_prompts=8):
        refused = dvc(away, "repro", "evaluate", check=False)
        assert f"lockstep pull {sft}" in refused.stderr + refused.stdout
        cluster.lab.run("./lockstep", "pull", sft, cwd=away)
        dvc(away, "repro", "evaluate")
    assert [path.parent.name for path in (away / "runs").glob("*/*/run.json")].count(sft) == 1
    assert {path.parts[-3] for path in (away / "runs").glob("*/*/run.json")} == {"sft", "evaluate"}

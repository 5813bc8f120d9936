"""On a real Slurm, through the SIF: a run on two nodes is the run at home, and harm on the way changes no bit of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from real.cluster import NUM_STEPS, SAVE_STEPS, Cluster, parameters, site

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


def test_two_nodes_give_the_bits_of_two_local_processes_and_come_home_as_one_run(cluster: Cluster, reference: str):
    before = _files_outside_runs(cluster)
    submitted = cluster.submit("sft", "--nodes", "2")[0]
    run, job = Path(submitted["run"]), submitted["job_id"]
    assert cluster.wait_for_end(job) == "COMPLETED", cluster.log(job)
    record = cluster.record(run)
    attempt = record["attempts"][0]
    assert (attempt["engine"], attempt["num_nodes"], attempt["num_processes"]) == ("apptainer", 2, 2)
    assert cluster.weights(run) == reference
    assert _files_outside_runs(cluster) == before, "a job wrote outside the runs folder"
    assert cluster.left_over(run) == []
    assert max(_bytes_by_rank(run)) < 0.7 * sum(_bytes_by_rank(run)), "the parameters were not sharded over both nodes"
    assert "complete already" in cluster.lockstep("submit", "sft", "--nodes", "2").stdout

    _finish_refuses_what_was_edited_meanwhile(cluster)
    said = json.loads(cluster.lockstep("finish", "sft", "--json").stdout)
    assert said["brought_home"] == [f"sft {run.name}"]
    assert said["tracked"][f"sft/{run.name}"] > NUM_STEPS
    assert {path.name for path in run.glob("system.*.jsonl")} == {"system.n1.jsonl", "system.n2.jsonl"}
    assert "up to date" in cluster.dvc(cluster.checkout, "status", "sft").stdout
    assert json.loads((cluster.checkout / "results/sft/result.json").read_text())["run_id"] == run.name
    again = json.loads(cluster.lockstep("finish", "sft", "--json").stdout)
    assert again["tracked"] == {}, "what MLflow has was sent twice"


def test_a_night_full_of_harm_ends_with_the_reference_bits(cluster: Cluster, reference: str):
    submitted = cluster.submit("sft", "--nodes", "2")[0]
    run, job = Path(submitted["run"]), submitted["job_id"]
    cluster.wait_for_step(run, SAVE_STEPS + 2)
    cluster.kill_rank(run, 1)
    cluster.wait_for_step(run, 2 * SAVE_STEPS + 2, attempt=2)
    cluster.lab.run("scontrol", "requeue", job)
    cluster.wait_for_step(run, 3 * SAVE_STEPS + 2, attempt=3)
    cluster.sbatch("--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    assert cluster.wait_for_end(job) == "COMPLETED", cluster.log(job)

    assert cluster.causes(run) == ["failed", "requeued", "saved on a signal", "done"]
    attempts = cluster.record(run)["attempts"]
    assert all(attempt["checkpoint_after"] > attempt["checkpoint_before"] for attempt in attempts), (
        "an attempt was in vain"
    )
    assert attempts[2]["end_step"] == attempts[3]["start_step"], "the announced end did not save its last step"
    assert cluster.weights(run) == reference
    log = cluster.log(job)
    assert [f"attempt {number} on" in log for number in (1, 2, 3, 4)] == [True] * 4, "a requeue truncated the log"
    assert cluster.left_over(run) == []


def test_a_cancelled_and_a_stopped_run_go_on_when_submitted_again(cluster: Cluster, reference: str):
    first = cluster.submit("sft", "--nodes", "2")[0]
    run = Path(first["run"])
    cluster.wait_for_step(run, SAVE_STEPS + 2)
    cluster.lab.run("scancel", first["job_id"])
    assert cluster.wait_for_end(first["job_id"]) == "CANCELLED"
    assert cluster.causes(run) == ["cancelled"]

    second = cluster.submit("sft", "--nodes", "2")[0]
    assert second["run"] == str(run)
    cluster.wait_for_step(run, 2 * SAVE_STEPS + 2, attempt=2)
    assert "asked to save and stop" in cluster.lockstep("stop", run.name).stdout
    assert cluster.wait_for_end(second["job_id"]) == "FAILED"
    assert cluster.lab.job(second["job_id"])["ExitCode"] == "85:0"
    assert cluster.record(run)["status"] == "stopped"

    third = cluster.submit("sft", "--nodes", "2")[0]
    assert cluster.wait_for_end(third["job_id"]) == "COMPLETED", cluster.log(third["job_id"])
    assert cluster.causes(run)[1:] == ["stopped by request", "done"]
    assert cluster.weights(run) == reference
    assert cluster.left_over(run) == []


def test_one_run_is_in_the_queue_once_and_leaves_it_on_request(cluster: Cluster):
    first = cluster.submit("sft", "--nodes", "2", "--sbatch=--hold")[0]
    second = cluster.submit("sft", "--nodes", "2")[0]
    assert (second["what"], second["job_id"]) == ("already queued or running", first["job_id"])
    (row,) = json.loads(cluster.lockstep("status", "--json").stdout)["jobs"]
    assert (row["state"], row["said_by"], row["why"]) == ("pending", "squeue", "JobHeldUser")
    assert "out of the queue" in cluster.lockstep("stop", first["job_id"]).stdout
    assert cluster.wait_for_end(first["job_id"]) == "CANCELLED"
    with parameters(cluster.checkout, seed=99):
        assert cluster.submit("sft", "--nodes", "2", "--sbatch=--hold")[0]["what"] == "submitted", (
            "params.yaml is not dirt"
        )
    (cluster.checkout / "Makefile").write_text((cluster.checkout / "Makefile").read_text() + "# edited\n")
    try:
        refused = cluster.lockstep("submit", "sft", check=False)
        assert refused.returncode == 2
        assert "Makefile" in refused.stderr
        allowed = cluster.submit("sft", "--nodes", "2", "--allow-dirty", "--sbatch=--hold")[0]
        assert "# edited" in (Path(allowed["run"]) / "dirty.diff").read_text()
    finally:
        cluster.lab.run("git", "checkout", "--quiet", "Makefile", cwd=cluster.checkout)


def test_another_image_than_the_locked_one_is_refused_for_good(cluster: Cluster, tmp_path: Path):
    (locked,) = (cluster.checkout / "images").glob("lockstep-cpu-*.sif")
    other = cluster.runs / "other.sif"
    other.write_bytes(locked.read_bytes() + b"one byte more")
    # On a disk of its own: the locked image lies on the nodes' disks by its hash, and would be taken from there.
    with site(cluster, LOCKSTEP_IMAGE=str(other), LOCKSTEP_SCRATCH=str(cluster.runs / "disk")):
        submitted = cluster.submit("sft", "--nodes", "2")[0]
        assert cluster.wait_for_end(submitted["job_id"]) == "FAILED"
    other.unlink()
    assert cluster.lab.job(submitted["job_id"])["ExitCode"] == "93:0"
    assert cluster.causes(submitted["run"]) == ["refused"]
    assert "is not the image that image.lock names" in cluster.record(submitted["run"])["attempts"][0]["reason"]


def _files_outside_runs(cluster: Cluster) -> dict[str, float]:
    """What a job must not touch: every file of the checkout (DVC's own among them) with its time of change."""
    links = ("images", ".venv", "data")
    return {
        str(path): path.stat().st_mtime
        for path in sorted(cluster.checkout.rglob("*"))
        if path.is_file()
        and path.relative_to(cluster.checkout).parts[0] not in links
        and "__pycache__" not in path.parts
    }


def _bytes_by_rank(run: Path) -> list[int]:
    manifest = json.loads((run / "checkpoints" / f"step-{NUM_STEPS}" / "manifest.json").read_text())
    by_rank: dict[int, int] = {0: 0, 1: 0}
    for entry in manifest["files"].values():
        by_rank[entry["rank"]] += entry["bytes"]
    return list(by_rank.values())


def _finish_refuses_what_was_edited_meanwhile(cluster: Cluster) -> None:
    """Decision 2: `dvc commit` would write today's parameters and code beside yesterday's result."""
    source = cluster.checkout / "src" / "lockstep" / "training" / "sft" / "loss.py"
    text = source.read_text()
    source.write_text(text + "# edited after the job was submitted\n")
    try:
        with parameters(cluster.checkout, sft__learning_rate=0.5):
            refused = cluster.lockstep("finish", "sft", check=False)
    finally:
        source.write_text(text)
    assert refused.returncode == 2
    assert "parameter sft.learning_rate: 0.003 in the run, 0.5 here" in refused.stderr
    assert "source file training/sft/loss.py" in refused.stderr
    assert not (cluster.checkout / "results" / "sft").exists()

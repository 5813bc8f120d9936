"""Nodes that are unfit, a node that two jobs share, and a login node with nothing but Slurm and Apptainer."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from real.cluster import Cluster, parameters, site
from real.place import USER

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


@pytest.fixture
def disks(cluster: Cluster) -> Iterator[Path]:
    """Node-local disks by node name, of which n1's is full."""
    folder = cluster.runs / "disks"
    for node in cluster.lab.nodes:
        (folder / node).mkdir(parents=True)
        shutil.chown(folder / node, USER)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=8m,uid={USER}", "tmpfs", folder / "n1"], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder / "n1"], check=True)


def test_a_node_with_a_full_disk_is_named_and_kept_away_from(cluster: Cluster, disks: Path):
    with site(cluster, LOCKSTEP_SCRATCH=f"{disks}/${{SLURMD_NODENAME:-login}}"):
        submitted = cluster.submit("sft", "--nodes", "2", "--until-step", "2")[0]
        run, job = Path(submitted["run"]), submitted["job_id"]
        cluster.wait_for_end(job)
    first, second = cluster.record(run)["attempts"]
    assert (first["cause"], second["end_step"]) == ("bad node", 2)
    assert first["reason"].startswith("n1: ")
    assert cluster.lab.job(job)["NodeList"] == "n[2-3]"
    assert "kept away from n1" in cluster.lockstep("status").stdout
    later = cluster.submit("sft", "--nodes", "2", "--sbatch=--hold")[0]
    assert cluster.lab.job(later["job_id"])["ExcNodeList"] == "n1"


def test_two_jobs_on_one_node_and_a_bare_sbatch(cluster: Cluster, reference: str):
    bare = cluster.sbatch(
        "--nodelist=n1", "--job-name=bare", f"--output={cluster.runs}/log/%x-%j.out", "slurm/train.sbatch", "sft"
    )
    with parameters(cluster.checkout, seed=7):
        other = cluster.submit("sft", "--sbatch=--nodelist=n1")[0]
    states = [cluster.wait_for_end(job) for job in (bare, other["job_id"])]
    assert states == ["COMPLETED", "COMPLETED"], cluster.log(bare)
    (run,) = [path.parent for path in cluster.runs.glob("sft/*/run.json") if path.parent != Path(other["run"])]
    assert cluster.weights(run) == reference != cluster.weights(other["run"])
    commit = cluster.lab.run("git", "rev-parse", "HEAD", cwd=cluster.checkout).stdout.strip()
    assert cluster.record(run)["provenance"]["git"]["commit"] == commit
    assert cluster.record(run)["attempts"][0]["slurm"]["job_id"] == bare


def test_a_login_node_without_python_has_all_the_verbs(cluster: Cluster, login: Path):
    venv = (login / ".venv").readlink()
    (login / ".venv").unlink()
    try:
        submitted = cluster.submit("sft", "--nodes", "2", "--sbatch=--hold")[0]
        assert cluster.lab.job(submitted["job_id"])["JobName"] == "lockstep-sft"
        (row,) = json.loads(cluster.lockstep("status", "--json").stdout)["jobs"]
        assert (row["state"], row["said_by"]) == ("pending", "squeue")
        assert "out of the queue" in cluster.lockstep("stop", submitted["job_id"]).stdout
        assert cluster.lockstep("finish", "sft", check=False).returncode == 2
    finally:
        (login / ".venv").symlink_to(venv)
    assert list((login / ".lockstep").glob("relay.*")) == []

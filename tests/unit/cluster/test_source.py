"""What was submitted is what runs: the kept sources are the checkout's at that moment, kept once, changed never."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.cluster.site import limits, site_settings
from lockstep.cluster.source import keep_source
from lockstep.cluster.submit import refuse_dirty
from lockstep.foundation.errors import UsageError


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for name in ("src/lockstep/a.py", "slurm/train.sbatch", "params.yaml", "notes.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def test_an_edit_after_the_submission_reaches_no_job(checkout: Path, tmp_path: Path) -> None:
    kept = keep_source(checkout, tmp_path / "runs")
    (checkout / "src/lockstep/a.py").write_text("edited")
    assert (kept / "src/lockstep/a.py").read_text() == "src/lockstep/a.py"
    assert keep_source(checkout, tmp_path / "runs") != kept
    (checkout / "src/lockstep/a.py").write_text("src/lockstep/a.py")
    assert keep_source(checkout, tmp_path / "runs") == kept


def test_only_what_a_job_needs_is_kept(checkout: Path, tmp_path: Path) -> None:
    kept = keep_source(checkout, tmp_path / "runs")
    assert not (kept / "notes.txt").exists()
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_the_site_profile_is_plain_assignments(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_QOS", "mine")
    profile = checkout / "slurm" / "site.env"
    profile.write_text(
        '# a site\nSBATCH_PARTITION=gpu\nLOCKSTEP_BINDS="/data /models"  # shared\nLOCKSTEP_MAX_FAILED=2\n'
    )
    settings = site_settings(checkout)
    assert (settings["SBATCH_PARTITION"], settings["LOCKSTEP_BINDS"]) == ("gpu", "/data /models")
    assert settings["SBATCH_QOS"] == "mine"
    assert limits(settings).failed == 2
    profile.write_text("SBATCH_PARTITION=gpu\nmodule load apptainer\n")
    with pytest.raises(UsageError, match="line 2"):
        site_settings(checkout)


def test_parameters_and_dvc_lock_are_no_dirt() -> None:
    refuse_dirty({"changed": ["params.yaml", "dvc.lock"]}, allowed=False)
    refuse_dirty({"changed": ["src/lockstep/a.py"]}, allowed=True)
    with pytest.raises(UsageError, match=r"src/lockstep/a\.py"):
        refuse_dirty({"changed": ["params.yaml", "src/lockstep/a.py"]}, allowed=False)

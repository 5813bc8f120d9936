"""What Slurm's programs say, read the same with and without accounting; programs that answer like the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.cluster.slurm import JobState, job_states, submit
from lockstep.foundation.errors import LockstepError, UsageError


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test writes there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def _program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_squeue_then_scontrol_then_sacct(programs: Path) -> None:
    _program(
        programs, "squeue", "echo '7|7|PENDING|Priority'; echo '11|9_0|RUNNING|None'; echo '9|9_1|PENDING|Resources'"
    )
    _program(
        programs,
        "scontrol",
        'case $4 in 5) echo "JobId=5 JobState=COMPLETED Reason=None ExitCode=0:0";; *) exit 1;; esac',
    )
    _program(programs, "sacct", 'case $6 in 3) echo "CANCELLED by 1001";; esac')
    found = job_states(["7", "9_0", "9_1", "5", "3", "2"])
    assert found["7"] == JobState("PENDING", "Priority", "squeue")
    assert found["9_0"] == JobState("RUNNING", "", "squeue")
    assert found["9_1"] == JobState("PENDING", "Resources", "squeue")
    assert found["5"] == JobState("COMPLETED", "", "scontrol")
    assert found["3"] == JobState("CANCELLED", "", "sacct")
    assert (found["2"].state, found["2"].is_live) == ("unknown", False)


def test_a_silent_controller_is_no_empty_queue(programs: Path) -> None:
    _program(programs, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(LockstepError, match="Unable to contact"):
        job_states(["7"])


def test_sbatch_refusing_is_said_in_its_own_words(programs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sbatch here"):
        submit(["job.sh"], tmp_path, {})
    _program(programs, "sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    with pytest.raises(LockstepError, match="Invalid account"):
        submit(["job.sh"], tmp_path, {})
    _program(programs, "sbatch", 'echo "$SBATCH_ACCOUNT" >account; echo "42;cluster"')
    assert submit(["job.sh"], tmp_path, {"SBATCH_ACCOUNT": "mine"}) == "42"
    assert (tmp_path / "account").read_text() == "mine\n"

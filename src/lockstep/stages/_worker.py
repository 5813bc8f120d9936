"""How a worker process begins and ends: read the job, run the stage, hand back how it went."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from lockstep.foundation.errors import EXIT_FAILED, EXIT_OK, EXIT_SAVED, LockstepError
from lockstep.runs.job import Job

_PR_SET_PDEATHSIG = 1


def main(run: Callable[[Job], None]) -> None:
    """Entry point of every `python -m lockstep.stages.<stage>`; exits with the stage's code.

    Under torchrun a saved stop exits with 0; the status file of the rank says 85, and the launching parent reads that.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    arguments = parser.parse_args()
    _die_with_launcher()
    job = Job.load(arguments.run_dir, arguments.attempt)
    code = _guarded(run, job)
    # torchrun ends the other ranks, on other nodes too, as soon as one exits with a code: they may still be saving.
    saved_under_torchrun = code == EXIT_SAVED and "TORCHELASTIC_RUN_ID" in os.environ
    sys.exit(EXIT_OK if saved_under_torchrun else code)


def _guarded(run: Callable[[Job], None], job: Job) -> int:
    try:
        run(job)
    except LockstepError as error:
        job.write_error(error.exit_code, str(error))
        print(f"\nlockstep {job.stage}: {error}", file=sys.stderr)
        return error.exit_code
    except Exception:
        job.write_error(EXIT_FAILED, traceback.format_exc())
        raise
    return 0


def _die_with_launcher() -> None:
    """A launcher killed with SIGKILL leaves no worker behind (Linux prctl(2)); a Ctrl-C is the parent's to handle."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

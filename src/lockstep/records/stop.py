"""A graceful stop from outside: a file that the workers read at their next step."""

from __future__ import annotations

from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import write_atomic
from lockstep.runs.directory import RunDirectory


def request_stop(directory: RunDirectory) -> str:
    """Writes the stop file of the newest attempt and returns what to tell the person.

    Raises UsageError when the run is not going on.
    """
    record = directory.read()
    name = directory.root.name
    if not record or record["status"] != "running":
        raise UsageError(f"Run {name} is not going on (status: {record['status'] if record else 'none'}).")
    attempt = record["attempts"][-1]["attempt"]
    write_atomic(directory.stop_file(attempt), "lockstep stop\n")
    return f"{name}: asked to save and stop at its next step. Repeat its command to go on."

"""Run by tests/integration/test_prepare.py inside a mount namespace of its own: `prepare` on a disk that is too small.

Prints one JSON object: what was said, and what was left.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from data_worlds import chat, experiment_with, prepare_job, write_jsonl
from lockstep.foundation.errors import LockstepError
from lockstep.stages.prepare import run


def attempt(mount_point: Path, data: Path, size_kib: int) -> dict[str, Any]:
    """One run of `prepare` whose run directory lies on a tmpfs of `size_kib`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(mount_point)], check=True)
    job = prepare_job(mount_point / "run", experiment_with(), {"sft": data}, model=data / "tokenizer")
    try:
        run(job)
        said = "nothing"
    except LockstepError as error:
        said = str(error)
    left = sorted(path.relative_to(mount_point).as_posix() for path in mount_point.rglob("*") if path.is_file())
    subprocess.run(["umount", str(mount_point)], check=True)
    return {"said": said, "left": left}


def main(folder: Path) -> None:
    """Too small for the texts that wait to be sorted, then just too small for the token store, then large enough."""
    mount_point, data = folder / "disk", folder / "data"
    mount_point.mkdir()
    write_jsonl(data / "chats.jsonl", [chat(f"How was film {n}?", f"Film {n} was great.") for n in range(800)])
    print(json.dumps([attempt(mount_point, data, size) for size in (160, 480, 8000)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

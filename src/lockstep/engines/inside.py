"""What Docker and Apptainer share: the same paths inside as outside, one environment file, one scratch folder."""

from __future__ import annotations

import csv
import io
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.engines.base import PYTHON, LaunchRequest
from lockstep.engines.binds import check_binds, resolved_binds
from lockstep.engines.images import LockedImage
from lockstep.engines.variables import cache_folders, host_variables, recorded_variables, stage_environment
from lockstep.foundation.files import sha256_bytes

PREFIX = Path("/opt/lockstep")
"""The Python environment inside an image."""
_CLIENT_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT",
    "APPTAINER_CACHEDIR", "APPTAINER_TMPDIR", "APPTAINER_CONFIGDIR",
)  # fmt: skip


@dataclass(frozen=True)
class Inside:
    """One request as it looks from inside a container."""

    request: LaunchRequest

    @property
    def name(self) -> str:
        """The container's name: the attempt's, made unique on this machine (two clones may run the same run id)."""
        return f"{self.request.attempt_name}-{self.run_mark}"

    @property
    def run_mark(self) -> str:
        """What all containers of one run folder have in common."""
        return sha256_bytes(str(self.request.scratch).encode())[:10]

    @property
    def home(self) -> Path:
        """HOME: a folder of the run, so that nothing of the user's own home is seen."""
        return self.request.scratch / "home"

    @property
    def temporary(self) -> Path:
        """What lies on /tmp: the job's node-local folder where Slurm gives one, else a folder of the run."""
        local = host_variables().get("SLURM_TMPDIR")
        return Path(local) / self.request.attempt_name if local else self.request.scratch / "tmp"

    @property
    def environment_file(self) -> Path:
        """The file that hands the variables over; its user alone can read it."""
        return self.request.scratch / f"{self.request.attempt_name}.env"

    def argv(self) -> list[str]:
        """The start-up check, then the stage, both with the image's Python."""
        python = str(PREFIX / "bin" / "python")
        words = self.request.argv
        command = [python, *words[1:]] if words[0] == PYTHON else [*words]
        return [python, "-m", "lockstep.engines.entry", "--flavour", self.request.flavour, "--", *command]

    def environment(self) -> dict[str, str]:
        """All variables of the process inside."""
        user = user_name()
        own = {
            "PATH": f"{PREFIX}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "USER": user,
            "LOGNAME": user,
            "TMPDIR": "/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return {**stage_environment(self.request, host_variables()), **own}

    def mounts(self, read_only_word: str) -> list[str]:
        """`--mount` values for /tmp, /var/tmp and every bind, in an order in which each finds its place."""
        return [
            mount_option(self.temporary, Path("/tmp"), ""),
            mount_option(self.temporary, Path("/var/tmp"), ""),
            *(mount_option(b.path, b.path, "" if b.writable else read_only_word) for b in resolved_binds(self.request)),
        ]

    def prepare(self, lines: list[str]) -> None:
        """Makes folders, mount points and the environment file with `lines`."""
        for folder in (*cache_folders(self.request.scratch), self.home, self.temporary):
            folder.mkdir(parents=True, exist_ok=True)
        check_binds(self.request)
        for bind in resolved_binds(self.request):
            self._make_mount_point(bind.path)
        self.environment_file.unlink(missing_ok=True)
        # It may hold a secret, so it is born unreadable for others, which an atomic write could not promise.
        with os.fdopen(os.open(self.environment_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("\n".join(lines) + "\n")

    def _make_mount_point(self, path: Path) -> None:
        """A bind below /tmp lands in the folder that lies on /tmp; made here, it belongs to the user, not to root."""
        if not path.is_relative_to("/tmp"):
            return
        point = self.temporary / path.relative_to("/tmp")
        point.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            point.mkdir(exist_ok=True)
        else:
            point.touch()


def image_record(engine: str, name: str, image: LockedImage, request: LaunchRequest) -> dict[str, Any]:
    """What an attempt's record keeps of a container engine."""
    return {
        "engine": engine,
        "image": {"name": name, "content_id": image.facts["content_id"]},
        "variables": recorded_variables(request),
    }


def user_name() -> str:
    """The user's name; one made of the number where the machine has no account for it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user{os.getuid()}"


def mount_option(source: Path, target: Path, rights: str) -> str:
    """One `--mount` value as both engines read it: comma-separated with CSV quoting, so that any path passes."""
    return csv_row("type=bind", f"source={source}", f"destination={target}", *([rights] if rights else []))


def csv_row(*fields: str) -> str:
    """Fields as the engines' options read them: quoted where one holds a comma, a quote or a line break."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()


def sees_gpu(request: LaunchRequest) -> bool:
    """True for a CUDA flavour on a machine with an NVIDIA driver."""
    return request.flavour == "cuda" and Path("/dev/nvidiactl").exists()


def client_environment() -> dict[str, str]:
    """What an engine's own client needs of the host."""
    host = host_variables()
    return {name: host[name] for name in _CLIENT_VARIABLES if name in host}

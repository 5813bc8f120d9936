"""The Apptainer engine: the SIF that image.lock names, as an ordinary user, with nothing but the declared binds."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.engines.base import LaunchRequest
from lockstep.engines.images import check_sif, locked_image, require_image, sif_path
from lockstep.engines.inside import Inside, client_environment, csv_row, image_record, sees_gpu
from lockstep.engines.variables import host_variables
from lockstep.foundation.errors import LockstepError
from lockstep.foundation.processes import capture


@dataclass(frozen=True)
class ApptainerEngine:
    """Runs in a SIF; needs no daemon and no root, so it is what clusters have."""

    project: Path
    name: str = "apptainer"

    def unavailable(self, flavour: str) -> str | None:
        """Why not: no program, no SIF of this environment here."""
        if shutil.which("apptainer") is None:
            return "there is no `apptainer` on PATH (a module to load?); install it, or use another engine"
        if capture(["apptainer", "--version"], timeout_s=10) is None:
            return "`apptainer --version` fails; see what it says"
        image = locked_image(self.project, flavour)
        if image is None:
            return f"image.lock names no image of the locked {flavour} environment; `make image` builds one"
        try:
            sif_path(self.project, image)
        except LockstepError as error:
            return str(error)
        return None

    def facts(self, request: LaunchRequest) -> dict[str, Any]:
        """The SIF by sha256 and content, and the variables."""
        image = require_image(self.project, request.flavour)
        return image_record(self.name, f"sha256:{(image.sif or {}).get('sha256')}", image, request)

    def command(self, request: LaunchRequest) -> list[str]:
        """`apptainer exec …` with everything that the container may see."""
        inside = Inside(request)
        options = [
            "--cleanenv",
            "--containall",
            "--no-eval",
            f"--home={inside.home}",
            f"--pwd={request.workdir}",
            f"--hostname={node_name()}",
            # A list of files, separated by commas; an ordinary path stays as it is.
            f"--env-file={csv_row(str(inside.environment_file))}",
            *(f"--mount={value}" for value in inside.mounts("ro")),
            *(["--nv"] if sees_gpu(request) else []),
            # Root in a virtual machine may lack a capability that Apptainer asks for; a user namespace needs none.
            *(["--userns"] if os.getuid() == 0 else []),
        ]
        sif = sif_path(self.project, require_image(self.project, request.flavour))
        return ["apptainer", "exec", *options, str(sif), *inside.argv()]

    def process_environment(self, request: LaunchRequest) -> dict[str, str]:
        """What Apptainer itself needs; the stage's variables go through the file."""
        return client_environment()

    def prepare(self, request: LaunchRequest) -> None:
        """Checks the SIF by its sha256 and makes folders and files."""
        check_sif(self.project, require_image(self.project, request.flavour))
        inside = Inside(request)
        # HOME is given by --home alone; Apptainer evaluates the file as shell text, so values are quoted for it.
        lines = [f"{n}={shlex.quote(v)}" for n, v in sorted(inside.environment().items()) if n != "HOME"]
        inside.prepare(lines)

    def stop(self, request: LaunchRequest) -> None:
        """Does nothing: the container is a child of the parent's process group and ends with its first process."""


def node_name() -> str:
    """The node's own name: launchers tell nodes apart by host name and process id, which repeat between containers."""
    return host_variables().get("SLURMD_NODENAME") or socket.gethostname()

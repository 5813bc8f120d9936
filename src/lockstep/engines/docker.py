"""The Docker engine: one container per attempt, as the user, with nothing but the declared binds."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lockstep.engines.base import LaunchRequest
from lockstep.engines.images import docker_answers, docker_image_id, locked_image, require_image
from lockstep.engines.inside import Inside, client_environment, image_record, mount_option, sees_gpu, user_name
from lockstep.foundation.errors import DoNotRetryError, UsageError
from lockstep.foundation.files import write_atomic
from lockstep.foundation.processes import capture

_LABEL = "lockstep.run"


@dataclass(frozen=True)
class DockerEngine:
    """Runs in the image that image.lock names, by its id."""

    project: Path
    name: str = "docker"

    def unavailable(self, flavour: str) -> str | None:
        """Why not: no client, no daemon that answers, no image of this environment here."""
        if shutil.which("docker") is None:
            return "there is no `docker` on PATH; install Docker, or use another engine"
        if not docker_answers():
            return "the Docker daemon does not answer; start it, or join the group `docker` and log in anew"
        image = locked_image(self.project, flavour)
        if image is None or image.docker_id is None:
            return f"image.lock names no Docker image of the locked {flavour} environment; `make image` builds one"
        if docker_image_id(image.docker_id) is None:
            return f"Docker does not have the image {image.docker_id[:19]} of image.lock; `make image` builds it"
        return None

    def facts(self, request: LaunchRequest) -> dict[str, Any]:
        """The image by id and content, and the variables."""
        image = require_image(self.project, request.flavour)
        return image_record(self.name, str(image.docker_id), image, request)

    def command(self, request: LaunchRequest) -> list[str]:
        """`docker run …` with everything that the container may see."""
        inside = Inside(request)
        options = [
            "--rm",
            "--init",
            f"--name={inside.name}",
            f"--label={_LABEL}={inside.run_mark}",
            f"--user={os.getuid()}:{os.getgid()}",
            *(f"--group-add={group}" for group in os.getgroups() if group != os.getgid()),
            f"--workdir={request.workdir}",
            "--network=host",
            f"--shm-size={psutil.virtual_memory().total // 2}",
            *(["--ulimit=memlock=-1:-1"] if Path("/dev/infiniband").exists() else []),
            "--read-only",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            f"--env-file={inside.environment_file}",
            *(f"--mount={value}" for value in [*inside.mounts("readonly"), *self._account_mounts(request)]),
            *(["--gpus=all"] if sees_gpu(request) else []),
            *(["--interactive"] if request.interactive else []),
            *(["--tty"] if request.interactive and sys.stdin.isatty() else []),
        ]
        image = require_image(self.project, request.flavour)
        return ["docker", "run", *options, str(image.docker_id), *inside.argv()]

    def process_environment(self, request: LaunchRequest) -> dict[str, str]:
        """What the docker client needs; the stage's variables go through the file."""
        return client_environment()

    def prepare(self, request: LaunchRequest) -> None:
        """Checks the image by its id, makes folders and files, and removes containers that earlier attempts left."""
        image = require_image(self.project, request.flavour)
        if image.docker_id is None or docker_image_id(image.docker_id) != image.docker_id:
            raise DoNotRetryError(
                f"Docker does not have the image that image.lock names ({image.docker_id}); "
                f"`make image FLAVOUR={request.flavour}` builds it and writes down its id"
            )
        inside = Inside(request)
        environment = inside.environment()
        broken = [name for name, value in environment.items() if "\n" in value]
        if broken:
            raise UsageError(f"the variable {broken[0]} has a line break, which Docker cannot hand over; unset it")
        inside.prepare([f"{name}={value}" for name, value in sorted(environment.items())])
        self._write_accounts(request)
        self._remove(capture(["docker", "ps", "--all", "--quiet", f"--filter=label={_LABEL}={inside.run_mark}"]))

    def stop(self, request: LaunchRequest) -> None:
        """Removes the attempt's container, running or not."""
        self._remove(Inside(request).name)

    def _remove(self, names: str | None) -> None:
        if names and names.split():
            capture(["docker", "rm", "--force", "--volumes", *names.split()])

    def _account_mounts(self, request: LaunchRequest) -> list[str]:
        folder = request.scratch / "etc"
        return [mount_option(folder / name, Path("/etc") / name, "readonly") for name in ("passwd", "group")]

    def _write_accounts(self, request: LaunchRequest) -> None:
        """Accounts for root and the user: several packages look their own user up and fail without one."""
        uid, gid, user, home = os.getuid(), os.getgid(), user_name(), Inside(request).home
        others = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        own = f"{user}:x:{uid}:{gid}::{home}:/bin/bash\n" if uid else ""
        write_atomic(request.scratch / "etc" / "passwd", others + own)
        write_atomic(
            request.scratch / "etc" / "group", "root:x:0:\nnogroup:x:65534:\n" + (f"{user}:x:{gid}:\n" if gid else "")
        )

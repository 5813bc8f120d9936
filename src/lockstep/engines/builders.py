"""The programs that make images: Docker (classic builder or BuildKit), buildah, and Apptainer for the SIF."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from lockstep.engines.images import docker_image_id
from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.foundation.processes import capture, run_shown

CONTENT_COMMAND = ("/opt/lockstep/bin/python", "-B", "-m", "lockstep.engines.content")
_UNCOMPRESSED = "-noD -noI -noF -noX"
"""mksquashfs: data, inodes, fragments and attributes as they are."""
_CODE = "/tmp/lockstep-code"
"""Where the checkout's src is bound for a content listing: below a folder that no listing enters."""


@dataclass(frozen=True)
class BuildRequest:
    """One image to build."""

    project: Path
    name: str
    """Name and tag."""
    arguments: dict[str, str]
    """`--build-arg` values of the Dockerfile."""
    timestamp: int
    """Seconds since 1970 for builders that can fix times (the commit's, so that two builds agree)."""

    def build_args(self) -> list[str]:
        """The arguments as the command line has them."""
        return [word for key, value in self.arguments.items() for word in ("--build-arg", f"{key}={value}")]


def build_with_docker(request: BuildRequest) -> str:
    """Builds with Docker and returns the image's id; BuildKit where its plugin is there, else the classic builder."""
    buildkit = capture(["docker", "buildx", "version"]) is not None
    command = ["docker", "build", "--network", "host", "--tag", request.name, *request.build_args(), "."]
    run_shown(command, cwd=request.project, env={"DOCKER_BUILDKIT": "1" if buildkit else "0"})
    image_id = docker_image_id(request.name)
    if image_id is None:
        raise LockstepError(f"Docker built {request.name} but does not know it")
    return image_id


def build_with_buildah(request: BuildRequest) -> str:
    """Builds with buildah, all times fixed, so that two builds have one digest; returns the image's id."""
    fixed = ["--timestamp", str(request.timestamp), "--isolation", "chroot", "--network", "host", "--layers=false"]
    run_shown(["buildah", "bud", *fixed, "--tag", request.name, *request.build_args(), "."], cwd=request.project)
    shown = capture(["buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", request.name])
    if not shown:
        raise LockstepError(f"buildah built {request.name} but does not know it")
    return f"sha256:{shown.strip()}"


def save_archive(builder: str, name: str, archive: Path) -> None:
    """Writes an image as a docker-archive tar; what stood there before is replaced."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    if builder == "buildah":
        run_shown(["buildah", "push", "--quiet", name, f"docker-archive:{archive}:{name}"])
    else:
        run_shown(["docker", "save", "--output", str(archive), name])


def docker_layers(name: str) -> list[str]:
    """The diff ids of an image's layers: sha256 of each uncompressed layer."""
    shown = capture(["docker", "image", "inspect", "--format", "{{range .RootFS.Layers}}{{.}} {{end}}", name])
    return shown.split() if shown else []


def apptainer_version() -> str:
    """Apptainer's version. Raises UsageError where there is none."""
    shown = capture(["apptainer", "--version"]) if shutil.which("apptainer") else None
    if not shown:
        raise UsageError("there is no Apptainer here; install it, or build the Docker image alone (--no-sif)")
    return shown.split()[-1]


def build_sif(
    definition: Path, target: Path, arguments: dict[str, str], *, fakeroot: bool = False, compress: bool = True
) -> None:
    """Builds a SIF from a definition file; the file appears whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part.sif")
    part.unlink(missing_ok=True)
    options = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    rights = ["--fakeroot"] if fakeroot else []
    packing = [] if compress else ["--mksquashfs-args", _UNCOMPRESSED]
    # Its cache would keep a copy of the whole archive in the user's home.
    command = ["apptainer", "build", "--disable-cache", *rights, *packing, *options, str(part), str(definition)]
    try:
        run_shown(command, cwd=definition.parent)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def docker_content(project: Path, image: str) -> list[str]:
    """The content listing of a Docker image."""
    mount = f"type=bind,source={project / 'src'},target={_CODE},readonly"
    options = ["--rm", "--network=none", f"--mount={mount}", f"--env=PYTHONPATH={_CODE}"]
    return _listing(["docker", "run", *options, image, *CONTENT_COMMAND])


def sif_content(project: Path, sif: Path) -> list[str]:
    """The content listing of a SIF."""
    # Without --no-home Apptainer makes the folders above the user's home, which the image does not have.
    apart = ["--cleanenv", "--containall", "--no-home", "--pwd=/"]
    code = ["--bind", f"{project / 'src'}:{_CODE}:ro", "--env", f"PYTHONPATH={_CODE}"]
    return _listing(["apptainer", "exec", *apart, *code, str(sif), *CONTENT_COMMAND])


def _listing(command: list[str]) -> list[str]:
    shown = capture(command, timeout_s=1800)
    if not shown:
        raise LockstepError(f"the content of the image could not be listed; try it: {' '.join(command)}")
    return shown.splitlines()

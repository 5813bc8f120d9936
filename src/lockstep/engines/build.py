"""`lockstep image build`: wheelhouse, image, SIF, content id, and all of it written to image.lock."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.engines import builders
from lockstep.engines.content import content_id, differences
from lockstep.engines.environment import environment_id
from lockstep.engines.images import docker_answers, images_path, locked_image, record_image
from lockstep.engines.lockfile import lock_path
from lockstep.engines.oci_layout import write_layout
from lockstep.engines.wheelhouse import fill_wheelhouse
from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.foundation.files import sha256_file, write_atomic
from lockstep.foundation.processes import capture, run_shown

DOCKER, BUILDAH, APPTAINER = "docker", "buildah", "apptainer"
_SHOWN = 5
_INPUTS = (
    "Dockerfile", "apptainer.def", "apptainer-base.def", "requirements",
    "scripts/image.sh", "scripts/install.sh", "scripts/bytecode.py",
)  # fmt: skip
"""What an image is made of; a commit that leaves them alone leaves the image the same."""


@dataclass(frozen=True)
class BuildOptions:
    """What one build may ask."""

    builder: str | None = None
    """docker, buildah (needs Docker, too), or apptainer (straight from the base); None: docker, else apptainer."""
    base: str | None = None
    """The base image; None: the pinned one of the Dockerfile. For apptainer also a path to a docker-archive."""
    sif: bool = True
    """Make a SIF too, where Apptainer is."""
    compress: bool = True
    """Compress the SIF."""


def build_image(project: Path, flavour: str, options: BuildOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Builds the image of a flavour and returns what image.lock now says about it.

    Raises UsageError when no builder is here, LockstepError when a step fails or the SIF's content is another one.
    """
    builder = _builder(options.builder)
    fill_wheelhouse(project, flavour, say)
    facts: dict[str, Any] = {
        "environment_id": environment_id(project, flavour),
        "lock_sha256": sha256_file(lock_path(project, flavour)),
        "commit": _last_change(project, "%H") or "unknown",
        "base": options.base or pinned_base(project),
    }
    if builder == APPTAINER:
        facts |= _sif_from_base(project, flavour, options, facts, say)
    else:
        facts |= _image(project, flavour, builder, facts, say)
        if options.sif and shutil.which("apptainer"):
            facts["sif"] = _sif_from_image(project, flavour, options, facts, say)
    record_image(project, flavour, facts)
    return facts


def _last_change(project: Path, form: str) -> str:
    """Of the last commit that changed what an image is made of; empty where there is none."""
    return (capture(["git", "log", "-1", f"--format={form}", "--", *_INPUTS], cwd=project) or "").strip()


def _builder(wanted: str | None) -> str:
    if wanted not in (None, DOCKER, BUILDAH, APPTAINER):
        raise UsageError(f"there is no builder '{wanted}'; there are {DOCKER}, {BUILDAH} and {APPTAINER}")
    if wanted != APPTAINER and docker_answers():
        return wanted or DOCKER
    if wanted in (DOCKER, BUILDAH):
        raise UsageError(f"the builder '{wanted}' needs a Docker daemon that answers; start it, or use {APPTAINER}")
    if shutil.which(APPTAINER) is None:
        raise UsageError("neither Docker (with a daemon that answers) nor Apptainer is here; one is needed")
    return APPTAINER


def pinned_base(project: Path) -> str:
    """The base that the Dockerfile pins by digest."""
    for line in (project / "Dockerfile").read_text(encoding="utf-8").splitlines():
        if line.startswith("ARG BASE_IMAGE="):
            return line.removeprefix("ARG BASE_IMAGE=")
    raise LockstepError("the Dockerfile names no BASE_IMAGE")


def image_name(project: Path, flavour: str) -> str:
    """Name and tag of the image of the locked environment."""
    return f"lockstep:{flavour}-{environment_id(project, flavour)}"


def _image(
    project: Path, flavour: str, builder: str, facts: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    name = image_name(project, flavour)
    arguments = {"FLAVOUR": flavour, "BASE_IMAGE": facts["base"], "COMMIT": facts["commit"]}
    arguments["LOCK_SHA256"] = facts["lock_sha256"]
    request = builders.BuildRequest(project, name, arguments, int(_last_change(project, "%ct") or 0))
    say(f"building {name} with {builder}")
    if builder == DOCKER:
        image_id = builders.build_with_docker(request)
    else:
        image_id = builders.build_with_buildah(request)
        _hand_to_docker(project, flavour, name)
    say("listing the image's content")
    lines = builders.docker_content(project, image_id)
    keep_listing(project, flavour, lines)
    docker = {"name": name, "image_id": image_id, "layers": builders.docker_layers(image_id), "builder": builder}
    return {"content_id": content_id(lines), "docker": docker}


def _hand_to_docker(project: Path, flavour: str, name: str) -> None:
    """buildah keeps images of its own; Docker runs them once it has loaded the archive."""
    archive = archive_path(project, flavour)
    builders.save_archive(BUILDAH, name, archive)
    run_shown(["docker", "load", "--quiet", "--input", str(archive)])
    archive.unlink()


def archive_path(project: Path, flavour: str) -> Path:
    """The image as a tar file, as `docker save` writes it."""
    return images_path(project) / f"lockstep-{flavour}.tar"


def _sif_file(project: Path, flavour: str) -> Path:
    return images_path(project) / f"lockstep-{flavour}-{environment_id(project, flavour)}.sif"


def _sif_from_image(
    project: Path, flavour: str, options: BuildOptions, facts: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    target = _sif_file(project, flavour)
    if (kept := _sif_of(project, flavour, options, facts)) is not None:
        say(f"{target.name} is that of this very image")
        return kept
    say(f"building {target.name} from the image")
    labels = {"FLAVOUR": flavour, "DIGEST": facts["docker"]["image_id"]}
    labels |= {"LOCK_SHA256": facts["lock_sha256"], "COMMIT": facts["commit"]}
    with tempfile.TemporaryDirectory(prefix="layout-", dir=images_path(project)) as layout:
        write_layout(facts["docker"]["image_id"], Path(layout))
        source = {"BOOTSTRAP": "oci", "IMAGE": layout}
        builders.build_sif(project / "apptainer.def", target, source | labels, compress=options.compress)
    lines = builders.sif_content(project, target)
    if content_id(lines) != facts["content_id"]:
        first = "\n  ".join(differences(read_listing(project, flavour), lines)[:_SHOWN])
        raise LockstepError(f"the SIF does not hold what the image holds:\n  {first}")
    return _sif_facts(project, target, "image", options)


def _sif_of(project: Path, flavour: str, options: BuildOptions, facts: dict[str, Any]) -> dict[str, Any] | None:
    """What image.lock says of the SIF that was made of this very image by this Apptainer, if it is here unchanged."""
    image = locked_image(project, flavour)
    if image is None or image.sif is None or image.docker_id != facts["docker"]["image_id"]:
        return None
    path, wanted = _sif_file(project, flavour), (options.compress, builders.apptainer_version())
    same = (image.sif["compressed"], image.sif["apptainer"]) == wanted and path.exists()
    return image.sif if same and sha256_file(path) == image.sif["sha256"] else None


def _sif_from_base(
    project: Path, flavour: str, options: BuildOptions, facts: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    target, base = _sif_file(project, flavour), str(facts["base"])
    say(f"building {target.name} from {base}")
    bootstrap = "docker-archive" if Path(base).exists() else "docker"
    arguments = {"BOOTSTRAP": bootstrap, "BASE": base, "FLAVOUR": flavour, "COMMIT": facts["commit"]}
    arguments["LOCK_SHA256"] = facts["lock_sha256"]
    definition = project / "apptainer-base.def"
    builders.build_sif(definition, target, arguments, fakeroot=True, compress=options.compress)
    lines = builders.sif_content(project, target)
    keep_listing(project, flavour, lines)
    return {"content_id": content_id(lines), "sif": _sif_facts(project, target, "base", options)}


def _sif_facts(project: Path, sif: Path, made_from: str, options: BuildOptions) -> dict[str, Any]:
    return {
        "file": sif.relative_to(project).as_posix(),
        "sha256": sha256_file(sif),
        "bytes": sif.stat().st_size,
        "apptainer": builders.apptainer_version(),
        "made_from": made_from,
        "compressed": options.compress,
    }


def _listing_path(project: Path, flavour: str) -> Path:
    return images_path(project) / f"lockstep-{flavour}.content.gz"


def keep_listing(project: Path, flavour: str, lines: list[str]) -> None:
    """Keeps the content listing beside the image, so that a later check can name the files that differ."""
    text = "".join(f"{line}\n" for line in lines)
    write_atomic(_listing_path(project, flavour), gzip.compress(text.encode(), mtime=0))


def read_listing(project: Path, flavour: str) -> list[str]:
    """The kept listing; empty where none was kept (the content id still tells whether anything differs)."""
    path = _listing_path(project, flavour)
    return gzip.decompress(path.read_bytes()).decode().splitlines() if path.exists() else []

"""The air-gap bundle: one folder with all that a site without internet needs, and checksums to prove it is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from lockstep.engines import builders
from lockstep.engines.build import archive_path
from lockstep.engines.environment import image_lock_path
from lockstep.engines.images import locked_image
from lockstep.engines.wheelhouse import fill_wheelhouse
from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.foundation.files import sha256_file, write_atomic
from lockstep.foundation.processes import capture

CHECKSUMS = "SHA256SUMS"
_READ_ME = """\
Everything that this checkout of Lockstep ({commit}) needs on a machine without internet, flavour {flavour}.

    sha256sum --check --quiet SHA256SUMS            is it whole?
    git clone lockstep.bundle lockstep && cd lockstep && git checkout {commit}
    cp -r ../wheelhouse .                           `make setup` then asks no index for anything
    cp -r ../images ../image.lock .                 the image (the SIF as it is, or docker load -i images/….tar)
    cp -r ../data ../models .                       what `./lockstep fetch` would have fetched
    make setup && ./lockstep image verify && make repro
"""


def export_bundle(project: Path, flavour: str, target: Path, say: Callable[[str], None]) -> Path:
    """Writes the bundle to the new folder `target`. Raises UsageError when it exists or the tree has no commit."""
    if target.exists():
        raise UsageError(f"{target} exists; name a new folder")
    commit = (capture(["git", "rev-parse", "HEAD"], cwd=project) or "").strip()
    if not commit:
        raise UsageError(f"{project} has no commit to carry; commit first")
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        _fill(project, flavour, part, say)
        write_atomic(part / "README", _READ_ME.format(commit=commit, flavour=flavour))
        say("computing checksums")
        _write_checksums(part)
        part.replace(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _fill(project: Path, flavour: str, part: Path, say: Callable[[str], None]) -> None:
    if capture(["git", "bundle", "create", str(part / "lockstep.bundle"), "HEAD", "--branches"], cwd=project) is None:
        raise LockstepError("`git bundle create` failed; is the repository whole (git fsck)?")
    _copy(fill_wheelhouse(project, flavour, say), part / "wheelhouse" / flavour)
    for folder in ("data", "models"):
        if (project / folder).is_dir():
            say(f"copying {folder}")
            _copy(project / folder, part / folder)
    _copy_images(project, flavour, part / "images", say)


def _copy_images(project: Path, flavour: str, target: Path, say: Callable[[str], None]) -> None:
    image = locked_image(project, flavour)
    if image is None:
        say("image.lock names no image of this environment: the bundle carries the wheelhouse alone")
        return
    target.mkdir()
    shutil.copy2(image_lock_path(project), target.parent)
    listing = project / "images" / f"lockstep-{flavour}.content.gz"
    files = [listing, *([project / image.sif["file"]] if image.sif else [])]
    for path in files:
        if path.exists():
            shutil.copy2(path, target)
    if image.docker_id and not (image.sif and (project / image.sif["file"]).exists()):
        say("saving the Docker image")
        builders.save_archive("docker", image.facts["docker"]["name"], target / archive_path(project, flavour).name)


def _copy(source: Path, target: Path) -> None:
    """Links become what they lead to: a bundle must not point back."""
    shutil.copytree(source, target, symlinks=False)


def _write_checksums(folder: Path) -> None:
    paths = sorted(Path(root) / name for root, _, names in os.walk(folder) for name in names)
    rows = [f"{sha256_file(path)}  {path.relative_to(folder).as_posix()}" for path in paths]
    write_atomic(folder / CHECKSUMS, "\n".join(rows) + "\n")

"""Images built again, by another program, or straight from the base: which names stay the same, and which may not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import parse_sdist_filename, parse_wheel_filename

from lockstep.engines.build import archive_path
from lockstep.engines.builders import docker_content, save_archive
from lockstep.engines.content import content_id, differences
from real.place import BASE_IMAGE, USER, Place, state

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]
# Each of these builds an image anew, minutes of two cores: the long form (make soak) runs them.
again = pytest.mark.soak


def buildah_build(place: Place, facts: dict[str, Any], tag: str) -> str:
    """Builds from the same inputs with buildah, all times fixed; returns the digest of the image's configuration."""
    arguments = {"FLAVOUR": "cpu", "BASE_IMAGE": f"docker-daemon:{BASE_IMAGE}", "COMMIT": facts["commit"]}
    arguments["LOCK_SHA256"] = facts["lock_sha256"]
    options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    fixed = ["--timestamp", "1700000000", "--isolation", "chroot", "--network", "host", "--layers=false", "--quiet"]
    command = ["buildah", "bud", *fixed, *options, "--tag", tag, "."]
    subprocess.run(command, cwd=place.checkout, check=True, capture_output=True, text=True)
    shown = subprocess.run(["buildah", "inspect", "--type", "image", tag], check=True, capture_output=True, text=True)
    return str(json.loads(shown.stdout)["FromImageID"])


@again
def test_buildah_gives_one_digest_twice_and_the_content_that_docker_gives(place: Place, image: dict[str, Any]):
    tags = ["lockstep-again:one", "lockstep-again:two"]
    digests = [buildah_build(place, image, tag) for tag in tags]
    assert digests[0] == digests[1]
    archive = state() / "again.tar"
    save_archive("buildah", tags[0], archive)
    try:
        subprocess.run(["docker", "load", "--quiet", "--input", str(archive)], check=True, capture_output=True)
        found = docker_content(place.checkout, tags[0])
    finally:
        archive.unlink()
        subprocess.run(["buildah", "rmi", "--force", *tags], check=True, capture_output=True)
    subprocess.run(["docker", "image", "rm", "--force", digests[0]], check=True, capture_output=True)
    assert differences(docker_content(place.checkout, image["docker"]["image_id"]), found) == []
    assert content_id(found) == image["content_id"]


@pytest.fixture
def index(place: Place, image: dict[str, Any]) -> Iterator[str]:
    """A package index over HTTP that serves the locked files: a folder for each package."""
    with tempfile.TemporaryDirectory(dir=place.checkout.parent) as folder:
        wheelhouse = place.checkout / "wheelhouse" / "cpu"
        names = {file: parse_wheel_filename(file.name)[0] for file in wheelhouse.glob("*.whl")}
        names |= {file: parse_sdist_filename(file.name)[0] for file in wheelhouse.glob("*.tar.gz")}
        for file, name in names.items():
            package = Path(folder) / name
            package.mkdir(exist_ok=True)
            (package / file.name).symlink_to(file)
        handler = partial(SimpleHTTPRequestHandler, directory=folder)
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_address[1]}/"
            server.shutdown()


@again
def test_without_a_wheelhouse_docker_builds_the_same_content_from_an_index(
    place: Place, image: dict[str, Any], index: str, tmp_path: Path
):
    names = ("Dockerfile", ".dockerignore", "image.lock")
    for name in names:
        shutil.copy2(place.checkout / name, tmp_path / name)
    for name in ("requirements", "scripts"):
        shutil.copytree(place.checkout / name, tmp_path / name)
    arguments = {"BASE_IMAGE": BASE_IMAGE, "PIP_INDEX_URL": index, "LOCKSTEP_TORCH_INDEX": index}
    options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    command = ["docker", "build", "--network", "host", *options, "--tag", "lockstep-again:online", "."]
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=environment)
    found = docker_content(place.checkout, "lockstep-again:online")
    subprocess.run(["docker", "image", "rm", "lockstep-again:online"], check=True, capture_output=True)
    assert differences(docker_content(place.checkout, image["docker"]["image_id"]), found) == []
    assert content_id(found) == image["content_id"]


@again
def test_a_second_sif_has_the_same_content(place: Place, image: dict[str, Any]):
    archive, again = archive_path(place.checkout, "cpu"), place.checkout / "images" / "again.sif"
    save_archive("docker", image["docker"]["name"], archive)
    archive.chmod(0o644)
    try:
        place.run("apptainer", "build", "--build-arg", f"IMAGE={archive}", again, "apptainer.def")
        listed = place.run(*_content_command(place, again)).stdout.splitlines()
    finally:
        archive.unlink()
        again.unlink(missing_ok=True)
    assert content_id(listed) == image["content_id"]


def _content_command(place: Place, sif: Path) -> list[str]:
    code = (
        "import sys; from pathlib import Path; from lockstep.engines.builders import sif_content; "
        "print('\\n'.join(sif_content(Path(sys.argv[1]), Path(sys.argv[2]))))"
    )
    python = ["env", f"PYTHONPATH={place.checkout / 'src'}", str(place.checkout / ".venv" / "bin" / "python")]
    return [*python, "-c", code, str(place.checkout), str(sif)]


def test_the_sif_says_where_it_comes_from(place: Place, image: dict[str, Any]):
    shown = place.run("apptainer", "inspect", "--json", image["sif"]["file"]).stdout
    labels = json.loads(shown)["data"]["attributes"]["labels"]
    assert labels["lockstep.oci.digest"] == image["docker"]["image_id"]
    assert labels["lockstep.lock.sha256"] == image["lock_sha256"]
    assert labels["lockstep.commit"] == image["commit"]
    place.run("apptainer", "test", image["sif"]["file"])


@again
def test_without_docker_a_sif_is_built_from_the_base_with_the_same_environment(place: Place, image: dict[str, Any]):
    clone = Place(place.checkout.parent / "no-docker")
    shutil.rmtree(clone.checkout, ignore_errors=True)
    shutil.copytree(place.checkout, clone.checkout, ignore=shutil.ignore_patterns(".venv", "runs*", "images", ".dvc"))
    (clone.checkout / ".venv").symlink_to(place.checkout / ".venv")
    subprocess.run(["chown", "-R", f"{USER}:{USER}", clone.checkout], check=True)
    base = state() / "base-archive.tar"
    save_archive("docker", BASE_IMAGE, base)
    base.chmod(0o644)
    shown = clone.lockstep("image", "build", "--builder", "apptainer", "--base", str(base), "--json").stdout
    facts = json.loads(shown[shown.index("{\n") :])
    assert facts["environment_id"] == image["environment_id"]
    assert facts["sif"]["made_from"] == "base"
    assert json.loads(clone.lockstep("image", "verify", "--json").stdout)["same"]
    command = ["/opt/lockstep/bin/python", "-c", "import torch; print(torch.ones(2).sum().item())"]
    assert clone.run("apptainer", "exec", facts["sif"]["file"], *command).stdout.strip() == "2.0"


@pytest.fixture(scope="module")
def site(place: Place, image: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """A checkout set up from a bundle without any network, and what its commands said."""
    target, site = place.checkout.parent / "bundle", place.checkout.parent / "site"
    for folder in (target, site):
        shutil.rmtree(folder, ignore_errors=True)
    place.lockstep("image", "export", str(target))
    script = f"""
set -eu
cd {target} && sha256sum --check --quiet SHA256SUMS
git clone --quiet {target}/lockstep.bundle {site} && cd {site}
mv {target}/wheelhouse {target}/images {target}/data {target}/image.lock .
make setup PYTHON=/usr/bin/python3.11
./lockstep use tiny-cpu
./lockstep image verify
./lockstep run prepare --engine apptainer
"""
    yield site, place.run("sh", "-c", script, network=False).stdout
    for folder in (target, site):
        shutil.rmtree(folder)


def test_a_bundle_sets_up_and_runs_without_any_network(site: tuple[Path, str]):
    assert (site[0] / "results" / "prepare" / "metrics.json").exists()


def test_docker_image_and_sif_have_the_one_locked_content(site: tuple[Path, str], image: dict[str, Any]):
    docker, sif = image["docker"]["image_id"][:19], Path(image["sif"]["file"]).name
    assert f"cpu: Docker image {docker} and {sif}: the locked content\n" in site[1]
    assert len(image["content_id"]) == 64

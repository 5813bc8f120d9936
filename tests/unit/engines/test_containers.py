"""What a container gets: the same paths, only declared binds, the locked image, and any path a user may have."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.engines.apptainer import ApptainerEngine
from lockstep.engines.base import Bind, Engine, LaunchRequest
from lockstep.engines.binds import check_binds, link_targets, resolved_binds
from lockstep.engines.build import BuildOptions, build_image
from lockstep.engines.docker import DockerEngine
from lockstep.engines.images import check_sif, require_image
from lockstep.engines.select import select_engine
from lockstep.foundation.errors import DoNotRetryError, UsageError
from lockstep.foundation.files import sha256_file

ODD = 'a folder, with "quotes", comma and ünï'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with a locked Docker image and a SIF, on an odd path."""
    folder = tmp_path / ODD
    (folder / "images").mkdir(parents=True)
    (folder / "params.yaml").touch()
    sif = folder / "images" / "cpu.sif"
    sif.write_bytes(b"a SIF")
    image = {
        "environment_id": "e1",
        "content_id": "c1",
        "docker": {"image_id": "sha256:" + "d" * 64, "name": "lockstep:cpu-e1"},
        "sif": {"file": "images/cpu.sif", "sha256": sha256_file(sif)},
    }
    lock = {"environments": {"cpu": {"id": "e1"}, "cuda": {"id": "e2"}}, "images": {"cpu": image}}
    (folder / "image.lock").write_text(json.dumps(lock))
    return folder


@pytest.fixture
def request_(project: Path) -> LaunchRequest:
    run = project.parent / "runs" / "x"
    (run / "scratch").mkdir(parents=True)
    return LaunchRequest(
        argv=("python", "-m", "lockstep.stages.sft"),
        project=project,
        workdir=project,
        scratch=run / "scratch",
        attempt_name="lockstep-sft-x-1",
        flavour="cpu",
        binds=(Bind(run, writable=True),),
    )


def mounts(command: list[str]) -> dict[str, tuple[str, bool]]:
    """Target → (source, writable) as the engine's CSV reader understands the `--mount` options."""
    found = {}
    for word in command:
        if word.startswith("--mount="):
            fields = next(csv.reader([word.removeprefix("--mount=")]))
            values = dict(field.split("=", 1) for field in fields if "=" in field)
            found[values["destination"]] = (values["source"], not {"ro", "readonly"} & set(fields))
    return found


@pytest.mark.parametrize("engine", [DockerEngine, ApptainerEngine])
def test_project_is_read_only_and_the_run_writable_at_the_same_paths(
    engine: type[DockerEngine | ApptainerEngine], project: Path, request_: LaunchRequest
):
    seen = mounts(engine(project).command(request_))
    assert seen[str(project)] == (str(project), False)
    assert seen[str(request_.scratch.parent)] == (str(request_.scratch.parent), True)
    assert seen["/tmp"] == (str(request_.scratch / "tmp"), True)
    assert str(Path.home()) not in seen


def test_docker_runs_the_locked_image_as_the_user_with_an_init_and_a_name(project: Path, request_: LaunchRequest):
    command = DockerEngine(project).command(request_)
    assert "sha256:" + "d" * 64 in command
    assert f"--user={os.getuid()}:{os.getgid()}" in command
    assert "--init" in command
    assert any(word.startswith("--name=lockstep-sft-x-1-") for word in command)
    assert f"--workdir={project}" in command
    assert not [word for word in command if word.startswith("--gpus")]


def test_two_clones_with_one_run_id_get_two_container_names(project: Path, request_: LaunchRequest):
    elsewhere = replace(request_, scratch=request_.scratch.parent / "other")
    names = [
        next(word for word in DockerEngine(project).command(r) if word.startswith("--name="))
        for r in (request_, elsewhere)
    ]
    assert names[0] != names[1]


def test_apptainer_sees_nothing_of_the_host_but_the_binds(project: Path, request_: LaunchRequest):
    command = ApptainerEngine(project).command(request_)
    assert {"--cleanenv", "--containall"} <= set(command)
    assert f"--home={request_.scratch / 'home'}" in command
    assert any(word.startswith("--hostname=") for word in command)
    assert str(project / "images" / "cpu.sif") in command


@pytest.mark.parametrize("engine", [DockerEngine, ApptainerEngine])
def test_an_image_of_another_environment_is_refused(
    engine: type[DockerEngine | ApptainerEngine], project: Path, request_: LaunchRequest
):
    with pytest.raises(UsageError, match="no cuda image.*make image FLAVOUR=cuda"):
        engine(project).command(replace(request_, flavour="cuda"))
    lock = json.loads((project / "image.lock").read_text())
    lock["environments"]["cpu"]["id"] = "e9"
    (project / "image.lock").write_text(json.dumps(lock))
    with pytest.raises(UsageError, match="e9"):
        engine(project).command(request_)


def test_a_changed_sif_is_refused_though_its_size_is_the_same(project: Path):
    image = require_image(project, "cpu")
    assert check_sif(project, image) == check_sif(project, image)
    (project / "images" / "cpu.sif").write_bytes(b"A SIF")
    with pytest.raises(DoNotRetryError, match="not the locked image.*image verify"):
        check_sif(project, image)


def test_a_symlinked_project_is_seen_under_both_names(tmp_path: Path, project: Path, request_: LaunchRequest):
    link = tmp_path / "link"
    link.symlink_to(project)
    paths = [bind.path for bind in resolved_binds(replace(request_, project=link, workdir=link))]
    assert link in paths
    assert project in paths


def test_links_into_a_dvc_cache_bring_the_cache_along_read_only(tmp_path: Path, project: Path, request_: LaunchRequest):
    content = tmp_path / "cache" / "files" / "md5" / "ab" / "cdef"
    content.parent.mkdir(parents=True)
    content.touch()
    data = project / "data"
    data.mkdir()
    (data / "train.jsonl").symlink_to(content)
    assert link_targets(data) == {tmp_path / "cache"}
    binds = resolved_binds(replace(request_, binds=(*request_.binds, Bind(data))))
    assert Bind(tmp_path / "cache", writable=False) in binds


def test_missing_and_unwritable_binds_are_refused_by_name(project: Path, request_: LaunchRequest):
    with pytest.raises(UsageError, match="nowhere.*does not exist"):
        check_binds(replace(request_, binds=(Bind(project / "nowhere"),)))


def test_an_unknown_engine_names_the_nearest(project: Path):
    with pytest.raises(UsageError, match="Did you mean 'docker'"):
        select_engine(project, "dockr", "cpu")


def test_an_unknown_builder_is_refused_before_anything_is_made(project: Path):
    before = sorted(project.rglob("*"))
    with pytest.raises(UsageError, match="no builder 'kaniko'; there are docker, buildah and apptainer"):
        build_image(project, "cpu", BuildOptions(builder="kaniko"), print)
    assert sorted(project.rglob("*")) == before


def test_the_engine_comes_from_the_command_then_the_variable_then_the_checkout(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    (project / ".lockstep").mkdir()
    (project / ".lockstep" / "engine").write_text("host\n")

    def chosen(wanted: str | None) -> Engine:
        return select_engine(project, wanted, "cpu")

    monkeypatch.delenv("LOCKSTEP_ENGINE", raising=False)
    assert chosen(None).name == "host"
    monkeypatch.setenv("LOCKSTEP_ENGINE", "nonsense")
    with pytest.raises(UsageError, match="nonsense"):
        chosen(None)
    assert chosen("host").name == "host"

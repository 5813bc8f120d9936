"""What goes wrong between a host and a container: each case is handled, or refused with a message before the start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real.place import USER, Place, state

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]
CONTAINERS = ("docker", "apptainer")
EVERYWHERE = ("host", *CONTAINERS)


@pytest.fixture(autouse=True)
def built(image: dict[str, Any]) -> None:
    """Every case needs the image."""


def probe(
    place: Place, engine: str, code: str, *, check: bool = True, host: dict[str, str] | None = None, **asked: Any
) -> subprocess.CompletedProcess[str]:
    """Runs `code` through an engine as the user; `host` are variables of the host."""
    project = Path(asked.get("project", place.checkout))
    request = {"engine": engine, "code": code, "scratch": str(place.checkout.parent / "probe" / "scratch"), **asked}
    python = place.checkout / ".venv" / "bin" / "python"
    path = {"PYTHONPATH": str(project / "src"), "PYTHONSAFEPATH": "1"}
    script = place.checkout / "tests" / "real" / "probe.py"
    return place.run(python, script, json.dumps(request), check=check, cwd=project, **path, **(host or {}))


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_a_package_in_the_users_home_does_not_win(place: Place, engine: str):
    local = state() / "home" / ".local" / "lib" / "python3.11" / "site-packages" / "numpy"
    local.mkdir(parents=True)
    (local / "__init__.py").write_text("raise SystemExit('the package of the home folder was imported')\n")
    try:
        shown = probe(place, engine, "import numpy; print(numpy.__file__)").stdout
    finally:
        shutil.rmtree(state() / "home" / ".local")
    assert "/.local/" not in shown


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_a_leaked_host_variable_does_not_reach_the_stage(place: Place, engine: str):
    leaked = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "TRANSFORMERS_OFFLINE": "0", "OMP_NUM_THREADS": "64", "SECRET": "x"}
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    seen = json.loads(probe(place, engine, code, host=leaked, environment={"OMP_NUM_THREADS": "1"}).stdout)
    assert seen["OMP_NUM_THREADS"] == "1"
    assert not {"CUBLAS_WORKSPACE_CONFIG", "TRANSFORMERS_OFFLINE", "SECRET"} & set(seen)
    assert seen["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_values_arrive_as_they_are(place: Place, engine: str):
    odd = {"A": "two  words", "B": "it's", "C": '"$HOME" `id` \\ $(id)', "D": "ünï;&|#", "E": ""}
    code = "import os, json; print(json.dumps({name: os.environ[name] for name in 'ABCDE'}))"
    assert json.loads(probe(place, engine, code, environment=odd).stdout) == odd


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_user_locale_and_working_directory_are_the_hosts(place: Place, engine: str):
    code = (
        "import getpass, os, sys; print(getpass.getuser(), os.getuid(), os.getcwd(), "
        "sys.getfilesystemencoding(), os.path.expanduser('~') != '/root', 'ünï')"
    )
    uid = subprocess.run(["id", "-u", USER], capture_output=True, text=True, check=True).stdout.strip()
    assert probe(place, engine, code).stdout.split() == [USER, uid, str(place.checkout), "utf-8", "True", "ünï"]


@pytest.mark.parametrize("engine", CONTAINERS)
def test_only_declared_binds_are_seen_and_only_the_run_is_writable(place: Place, engine: str):
    code = f"""
import os, pathlib
project = pathlib.Path({str(place.checkout)!r})
assert (project / "params.yaml").exists()
assert not os.access(project, os.W_OK)
assert not pathlib.Path({str(state() / "home")!r}).exists()
assert not pathlib.Path({str(state() / "base.tar")!r}).exists()
pathlib.Path("/tmp/here").write_text("x")
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize > 1 << 30
print("fine")
"""
    assert probe(place, engine, code).stdout.strip() == "fine"


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_a_missing_bind_is_refused_before_the_start(place: Place, engine: str):
    done = probe(place, engine, "print('started')", check=False, binds=[["/nowhere/at/all", False]])
    assert done.returncode == 2
    assert "/nowhere/at/all" in done.stderr
    assert "started" not in done.stdout


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_a_run_folder_that_cannot_be_written_is_refused(place: Place, engine: str):
    folder = place.checkout.parent / "read-only"
    folder.mkdir(exist_ok=True)
    os.chown(folder, 0, 0)
    folder.chmod(0o755)
    done = probe(place, engine, "print('started')", check=False, binds=[[str(folder), True]])
    assert done.returncode == 2
    assert "not writable for you" in done.stderr


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_a_read_only_project_runs(place: Place, engine: str):
    subprocess.run(["chmod", "-R", "a-w", place.checkout / "src"], check=True)
    try:
        assert probe(place, engine, "import lockstep; print('fine')").stdout.strip() == "fine"
    finally:
        subprocess.run(["chmod", "-R", "u+w", place.checkout / "src"], check=True)


@pytest.fixture(scope="module")
def odd_project(place: Place) -> Iterator[Path]:
    """The checkout again under a path with spaces, quotes and letters of other tongues, below /tmp."""
    folder = Path("/tmp") / f"lockstep {os.getpid()}, «ünï» it's"
    shutil.copytree(place.checkout, folder, ignore=shutil.ignore_patterns(".venv", "wheelhouse", "runs", "images"))
    (folder / "images").symlink_to(place.checkout / "images")
    subprocess.run(["chown", "-R", f"{USER}:{USER}", folder], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_odd_paths_pass(place: Place, odd_project: Path, engine: str):
    code = "import os, lockstep; print(os.getcwd()); print(lockstep.__file__)"
    scratch = odd_project / "runs" / "a b" / "scratch"
    shown = probe(place, engine, code, project=str(odd_project), scratch=str(scratch)).stdout
    assert shown.splitlines() == [str(odd_project), str(odd_project / "src" / "lockstep" / "__init__.py")]


@pytest.mark.parametrize("engine", EVERYWHERE)
def test_a_symlinked_project_folder_works(place: Place, engine: str):
    link = place.checkout.parent / f"link-{engine}"
    link.unlink(missing_ok=True)
    link.symlink_to(place.checkout)
    code = "import os; print(os.path.exists('params.yaml'), os.getcwd())"
    shown = probe(place, engine, code, project=str(link)).stdout.split()
    assert shown[0] == "True"
    assert shown[1] in (str(link), str(place.checkout))


@pytest.mark.parametrize("engine", CONTAINERS)
def test_data_that_are_links_into_a_dvc_cache_can_be_read(place: Place, engine: str):
    cache = place.checkout.parent / "shared cache" / "files" / "md5" / "ab"
    data = place.checkout.parent / "data"
    cache.mkdir(parents=True, exist_ok=True)
    data.mkdir(exist_ok=True)
    (cache / "cdef").write_text("content")
    link = data / f"train-{engine}.jsonl"
    link.unlink(missing_ok=True)
    link.symlink_to(cache / "cdef")
    shown = probe(place, engine, f"print(open({str(link)!r}).read())", binds=[[str(data), False]]).stdout
    assert shown.strip() == "content"


def test_another_image_under_the_same_name_is_refused(place: Place, image: dict[str, Any]):
    lock = place.checkout / "image.lock"
    before = lock.read_text()
    lock.write_text(before.replace(image["docker"]["image_id"], "sha256:" + "0" * 64))
    try:
        done = place.lockstep("run", "prepare", "--engine", "docker", check=False, LOCKSTEP_FRESH="1")
    finally:
        lock.write_text(before)
    assert done.returncode in (2, 93)
    assert "make image" in done.stderr


def test_a_file_changed_inside_the_image_is_named(place: Place, image: dict[str, Any]):
    name = image["docker"]["name"]
    changed = "RUN echo '# changed' >> /opt/lockstep/lib/python3.11/site-packages/numpy/version.py"
    recipe = f"FROM {image['docker']['image_id']}\nUSER root\n{changed}\n"
    command = ["docker", "build", "--quiet", "--tag", name, "-"]
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    built = subprocess.run(command, input=recipe, text=True, check=True, capture_output=True, env=environment).stdout
    try:
        done = place.lockstep("image", "verify", check=False)
    finally:
        subprocess.run(["docker", "tag", image["docker"]["image_id"], name], check=True)
        subprocess.run(["docker", "image", "rm", built.strip()], check=True, capture_output=True)
    assert done.returncode == 93
    assert "changed  /opt/lockstep/lib/python3.11/site-packages/numpy/version.py" in done.stdout


def test_a_sif_that_is_another_file_is_refused(place: Place, image: dict[str, Any]):
    sif = place.checkout / image["sif"]["file"]
    with open(sif, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    try:
        done = probe(place, "apptainer", "print('started')", check=False)
    finally:
        with open(sif, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(last)
    assert done.returncode == 93
    assert "not the locked image" in done.stderr


def test_a_container_whose_client_died_is_removed_by_the_next_start(place: Place):
    code = "import time; print('up', flush=True); time.sleep(600)"
    asked = {"engine": "docker", "code": code, "scratch": str(place.checkout.parent / "orphan" / "scratch")}
    python = place.checkout / ".venv" / "bin" / "python"
    script = place.checkout / "tests" / "real" / "probe.py"
    variables = [f"PYTHONPATH={place.checkout}/src", f"HOME={state()}/home", "PATH=/usr/local/bin:/usr/bin:/bin"]
    command = ["runuser", "-u", USER, "--", "env", "-i", *variables, str(python), str(script), json.dumps(asked)]
    client = subprocess.Popen(command, cwd=place.checkout, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert client.stdout is not None
    assert client.stdout.readline().strip() == "up"
    os.killpg(client.pid, 9)
    client.wait()
    assert "lockstep-probe-1" in _containers()
    probe(place, "docker", "pass", scratch=asked["scratch"], name="lockstep-probe-2")
    _until(lambda: "lockstep-probe-1" not in _containers())


def _containers() -> str:
    listed = subprocess.run(["docker", "ps", "--format", "{{.Names}}"], capture_output=True, text=True, check=True)
    return listed.stdout


def _until(reached: Any, limit_s: float = 30) -> None:
    """Waits for a state that comes by itself; fails when it does not come."""
    end = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)


def test_dry_run_prints_the_command_that_runs(place: Place):
    command = place.lockstep("run", "prepare", "--engine", "apptainer", "--dry-run", LOCKSTEP_FRESH="1").stdout
    assert command.startswith("apptainer exec --cleanenv --containall")
    assert "lockstep.stages.prepare" in command


@pytest.mark.parametrize("engine", CONTAINERS)
def test_a_shell_opens_where_the_stage_would_run(place: Place, engine: str):
    typed = "pwd; command -v python; exit 3\n"
    done = place.run("./lockstep", "run", "prepare", "--engine", engine, "--shell", check=False, stdin=typed)
    assert done.returncode == 3
    assert done.stdout.splitlines() == [str(place.checkout), "/opt/lockstep/bin/python"]

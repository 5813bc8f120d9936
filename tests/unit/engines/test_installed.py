"""A start notices every way in which an environment is not the locked one."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

import pytest

from lockstep.engines.environment import check_installed
from lockstep.engines.installed import record_digest
from lockstep.foundation.errors import DoNotRetryError


def install(site: Path, name: str, version: str, source: str) -> Path:
    """A package as a wheel installer leaves it."""
    (site / f"{name}.py").write_text(source)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    digest = base64.urlsafe_b64encode(hashlib.sha256(source.encode()).digest()).rstrip(b"=").decode()
    rows = [
        f"{name}.py,sha256={digest},{len(source)}",
        f"../../../bin/{name},sha256=whatever,1",
        f"{info.name}/RECORD,,",
    ]
    (info / "RECORD").write_text("\n".join(rows) + "\n")
    return info / "RECORD"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout that locks one package, and beside it an environment that holds it."""
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    record = install(site, "alpha", "1.0", "value = 1\n")
    requirements = tmp_path / "requirements"
    requirements.mkdir()
    sha = "a" * 64
    (requirements / "cpu.lock").write_text(f"alpha==1.0 \\\n    --hash=sha256:{sha}\n")
    (requirements / "dev.lock").write_text(f"tool==3.0 \\\n    --hash=sha256:{'b' * 64}\n")
    records = {"alpha": {"sha256": sha, "record": record_digest(record)}}
    (requirements / "cpu.records.json").write_text(json.dumps(records))
    (tmp_path / "image.lock").write_text(json.dumps({"environments": {"cpu": {"id": "0123456789abcdef"}}}))
    return tmp_path


@pytest.fixture
def site(project: Path) -> Path:
    return project / "venv" / "lib" / "python3.11" / "site-packages"


def test_the_locked_environment_passes_twice(project: Path, site: Path):
    check_installed(project, "cpu", site=site)
    check_installed(project, "cpu", site=site)


def test_bytecode_and_locked_development_tools_are_no_difference(project: Path, site: Path):
    check_installed(project, "cpu", site=site)
    (site / "__pycache__").mkdir()
    (site / "__pycache__" / "alpha.cpython-311.pyc").write_bytes(b"x")
    install(site, "tool", "3.0", "")
    check_installed(project, "cpu", site=site)


def test_an_edited_file_is_noticed_even_after_a_good_check(project: Path, site: Path):
    check_installed(project, "cpu", site=site)
    (site / "alpha.py").write_text("value = 2\n")
    with pytest.raises(DoNotRetryError, match=r"alpha 1\.0: alpha\.py was changed[\s\S]*make setup FLAVOUR=cpu"):
        check_installed(project, "cpu", site=site)


def test_a_full_check_sees_an_edit_that_hid_its_time(project: Path, site: Path):
    before = (site / "alpha.py").stat()
    check_installed(project, "cpu", site=site)
    (site / "alpha.py").write_text("value = 7\n")
    os.utime(site / "alpha.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DoNotRetryError, match="was changed"):
        check_installed(project, "cpu", site=site, full=True)


def test_a_package_built_otherwise_is_noticed_though_name_and_version_agree(project: Path, site: Path):
    for path in [*site.glob("alpha-1.0.dist-info/*"), site / "alpha.py"]:
        path.unlink()
    (site / "alpha-1.0.dist-info").rmdir()
    install(site, "alpha", "1.0", "value = 'another wheel'\n")
    with pytest.raises(DoNotRetryError, match="does not hold the files of the locked wheel"):
        check_installed(project, "cpu", site=site)


def test_another_version_a_missing_and_an_unlocked_package_are_named(project: Path, site: Path):
    (site / "alpha-1.0.dist-info").rename(site / "alpha-1.1.dist-info")
    with pytest.raises(DoNotRetryError, match=r"alpha is 1\.1, locked is 1\.0"):
        check_installed(project, "cpu", site=site)
    (site / "alpha-1.1.dist-info").rename(site / "beta-1.0.dist-info")
    with pytest.raises(DoNotRetryError, match=r"alpha is missing[\s\S]*beta 1\.0 is installed but not locked"):
        check_installed(project, "cpu", site=site)


def test_a_deleted_file_is_noticed(project: Path, site: Path):
    (site / "alpha.py").unlink()
    with pytest.raises(DoNotRetryError, match=r"alpha\.py was changed"):
        check_installed(project, "cpu", site=site)


def test_an_image_is_known_by_its_own_id(project: Path, site: Path):
    facts = project / "venv" / "lockstep-image.json"
    facts.write_text(json.dumps({"environment_id": "0123456789abcdef", "flavour": "cpu"}))
    check_installed(project, "cpu", site=site)
    assert not (site / ".lockstep-checked").exists()

"""Of all the files that an index offers for a version, the lock keeps the one that this platform installs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.engines.locking import chosen
from lockstep.foundation.errors import LockstepError


def pylock(folder: Path, *, wheels: list[str], sdist: str | None = None) -> Path:
    """A pylock.toml with one package; a file's sha256 is its name, for this test."""

    def entry(name: str) -> str:
        return f'{{ url = "https://index.invalid/{name}", hashes = {{ sha256 = "{name}" }} }}'

    lines = ['[[packages]]\nname = "Some.Package"\nversion = "1"']
    lines.append(f"wheels = [{', '.join(entry(name) for name in wheels)}]")
    lines += [f"sdist = {entry(sdist)}"] if sdist else []
    path = folder / "pylock.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "best_first",
    [
        pytest.param(["cp311-cp311-manylinux_2_17_x86_64", "py3-none-any"], id="binary over pure"),
        pytest.param(["cp311-abi3-manylinux_2_28_x86_64", "cp39-abi3-manylinux_2_28_x86_64"], id="newest abi3"),
        pytest.param(
            ["cp311-cp311-manylinux2014_x86_64", "cp311-cp311-manylinux_2_34_x86_64"], id="glibc as torch needs"
        ),
        pytest.param(["py3-none-any", "cp312-cp312-manylinux_2_17_x86_64"], id="not another Python"),
    ],
)
def test_the_file_of_this_platform_is_kept(tmp_path: Path, best_first: list[str]):
    offered = [f"p-1+local-{tag}.whl" for tag in best_first]
    for order in (offered, offered[::-1]):
        assert chosen(pylock(tmp_path, wheels=order))["some-package"].sha256 == offered[0]


def test_a_source_serves_where_no_wheel_does(tmp_path: Path):
    files = pylock(tmp_path, wheels=["p-1-cp311-cp311-macosx_11_0_arm64.whl"], sdist="p-1.tar.gz")
    assert chosen(files)["some-package"].sha256 == "p-1.tar.gz"


def test_a_package_without_a_file_for_this_platform_is_named(tmp_path: Path):
    with pytest.raises(LockstepError, match=r"Some\.Package 1 has no file for Python 3\.11 on Linux x86_64"):
        chosen(pylock(tmp_path, wheels=["p-1-cp311-cp311-win_amd64.whl"]))

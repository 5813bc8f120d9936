"""Compiles an environment's modules, the same bytes every time: `python bytecode.py PREFIX` (while an image is built).

A read-only image cannot keep what Python compiles at the first import, so every start would pay for it again.
Bytecode is made unchecked (it holds no time stamp), in a fixed order, and by a fixed number of processes with fixed
shares, because the marshalled bytes depend on what the same process compiled before.
"""

from __future__ import annotations

import multiprocessing
import os
import py_compile
import sys
from pathlib import Path

_SHARES = 4
_LEFT_OUT = {"tests", "test", "testing_data"}


def modules(prefix: Path) -> list[Path]:
    """Every module below `prefix` but the packages' own tests."""
    return sorted(path for path in prefix.rglob("*.py") if not _LEFT_OUT & set(path.parts))


def compile_share(paths: list[Path]) -> None:
    """Compiles in order; a file that is no valid module (a template, say) is left alone."""
    for path in paths:
        try:
            py_compile.compile(str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        except (py_compile.PyCompileError, UnicodeDecodeError):
            continue


def main(prefix: Path) -> None:
    """Compiles all of `prefix`."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("PYTHONHASHSEED=0 is needed: the order of sets enters the bytes")
    paths = modules(prefix)
    shares = [paths[number::_SHARES] for number in range(_SHARES)]
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=compile_share, args=(share,)) for share in shares]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        sys.exit("a compiling process failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

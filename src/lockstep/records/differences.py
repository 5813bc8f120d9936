"""What was locked differently in two runs, ranked by how likely it explains another result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.foundation.files import read_json
from lockstep.runs.directory import RunDirectory

_NUMERIC_PACKAGES = (
    "torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "tokenizers", "datasets", "numpy", "scipy",
    "scikit-learn", "safetensors",
)  # fmt: skip
_ABSENT = "absent"


@dataclass(frozen=True)
class Difference:
    """One lock or circumstance that two runs do not share. A lower rank explains more."""

    rank: int
    kind: str
    name: str
    left: Any
    right: Any

    def line(self) -> str:
        """For a terminal."""
        return f"{self.kind}: {self.name}: {_short(self.left)} → {_short(self.right)}"


def differences(left: RunDirectory, right: RunDirectory) -> list[Difference]:
    """Everything that differs between two recorded runs, likeliest explanation first.

    The order: parameters, inputs, code, numeric packages, world size and threads, hardware class, other packages,
    engine. A difference that cannot matter (host, time, path) is not in the list.
    """
    a, b = left.read() or {}, right.read() or {}
    found = [
        *_pairs(0, "parameter", _flat(a["locks"]["params"]), _flat(b["locks"]["params"])),
        *_pairs(1, "input", a["locks"]["inputs"], b["locks"]["inputs"]),
        *_pairs(2, "code", _detail(left, "code"), _detail(right, "code")),
        *_packages(_detail(left, "packages"), _detail(right, "packages")),
        *_pairs(4, "processes", _world(a), _world(b)),
        *_pairs(5, "hardware", _hardware(a), _hardware(b)),
        *_pairs(7, "engine", _engine(a), _engine(b)),
    ]
    return sorted(found, key=lambda difference: (difference.rank, difference.kind, difference.name))


def _pairs(rank: int, kind: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    names = sorted({*left, *right})
    values = [(name, left.get(name, _ABSENT), right.get(name, _ABSENT)) for name in names]
    return [Difference(rank, kind, name, a, b) for name, a, b in values if a != b]


def _packages(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    found = _pairs(6, "package", left, right)
    return [
        Difference(3, pair.kind, pair.name, pair.left, pair.right) if pair.name in _NUMERIC_PACKAGES else pair
        for pair in found
    ]


def _detail(directory: RunDirectory, name: str) -> dict[str, Any]:
    path = directory.lock_detail(name)
    return dict(read_json(path)) if path.exists() else {}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat.update(_flat(inner, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def _world(record: Mapping[str, Any]) -> dict[str, Any]:
    worlds = sorted({(attempt["num_processes"], attempt["threads_per_process"]) for attempt in record["attempts"]})
    return {"processes × threads": ", then ".join(f"{processes} × {threads}" for processes, threads in worlds)}


def _hardware(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"class": record["provenance"]["hardware"]["class"]}


def _engine(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"engine": ", ".join(sorted({attempt["engine"] for attempt in record["attempts"]}))}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:12]}…{text[-6:]}"

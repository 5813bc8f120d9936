"""The identity of weights: independent of order, dependent on everything else; and the manifest that guards files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lockstep.foundation.errors import UsageError
from lockstep.models.weights import named_weights, read_manifest, verify_manifest, weights_sha256, write_manifest

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(1.5, dtype=torch.bfloat16), "c": torch.zeros(0)}


def test_the_order_of_tensors_does_not_count():
    assert weights_sha256(WEIGHTS.items()) == weights_sha256(reversed(WEIGHTS.items()))


@pytest.mark.parametrize(
    "changed",
    [
        {"a": torch.arange(6.0).reshape(3, 2)},
        {"a": torch.arange(6.0).reshape(2, 3).double()},
        {"a": torch.arange(6.0).reshape(2, 3) + 1e-6},
        {"d": torch.zeros(0)},
    ],
)
def test_shape_dtype_bytes_and_names_count(changed: dict[str, torch.Tensor]):
    assert weights_sha256({**WEIGHTS, **changed}.items()) != weights_sha256(WEIGHTS.items())


def test_memory_layout_does_not_count():
    transposed = torch.arange(6.0).reshape(3, 2).t()
    assert weights_sha256([("a", transposed)]) == weights_sha256([("a", transposed.contiguous())])


def test_tied_weights_and_unsaved_buffers_count_once_and_not_at_all():
    model = torch.nn.Module()
    model.first = torch.nn.Linear(2, 2, bias=False)
    model.second = torch.nn.Linear(2, 2, bias=False)
    model.second.weight = model.first.weight
    model.register_buffer("saved", torch.ones(1))
    model.register_buffer("unsaved", torch.ones(1), persistent=False)
    assert [name for name, _ in named_weights(model)] == ["first.weight", "saved"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    write_manifest(tmp_path, tmp_path, "model", "0" * 64)
    return tmp_path


def test_a_manifest_names_every_file_but_itself(folder: Path):
    manifest = read_manifest(folder)
    verify_manifest(folder, manifest)
    assert sorted(manifest["files"]) == ["config.json", "sub/x.safetensors"]
    assert manifest["files"]["sub/x.safetensors"]["bytes"] == 7


def test_a_changed_file_of_the_same_size_is_found(folder: Path):
    (folder / "sub" / "x.safetensors").write_bytes(b"Weights")
    with pytest.raises(UsageError, match=r"x\.safetensors"):
        verify_manifest(folder, read_manifest(folder))


def test_a_missing_file_and_a_missing_manifest_are_named(folder: Path):
    manifest = read_manifest(folder)
    (folder / "config.json").unlink()
    with pytest.raises(UsageError, match=r"config\.json"):
        verify_manifest(folder, manifest)
    (folder / "manifest.json").unlink()
    with pytest.raises(UsageError, match=r"manifest\.json"):
        read_manifest(folder)

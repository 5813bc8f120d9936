"""All random generators of a process go on where they were."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
import torch

from lockstep.training.common import random_state


def _draw() -> tuple[float, float, float, float, list[float]]:
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()


def test_restored_generators_draw_the_same_numbers_again() -> None:
    _draw()
    state = random_state.capture()
    first = _draw()
    assert _draw() != first
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    random_state.restore(torch.load(buffer, weights_only=True))
    assert _draw() == first


def test_a_gpu_state_without_a_gpu_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    random_state.restore({**random_state.capture(), "cuda": torch.zeros(16, dtype=torch.uint8)})
    assert "comes from a GPU" in caplog.text

"""Which locked environment each stage runs in; the key under which image.lock holds its id."""

from __future__ import annotations

from typing import Literal

from lockstep.params.base import Strict

Flavour = Literal["cpu", "cuda"]


class FlavourParams(Strict):
    """One flavour per stage, so that what a cluster ran with `cuda` is up to date on a laptop."""

    prepare: Flavour = "cpu"
    sft: Flavour = "cpu"
    reward: Flavour = "cpu"
    ppo: Flavour = "cpu"
    evaluate: Flavour = "cpu"
    report: Flavour = "cpu"

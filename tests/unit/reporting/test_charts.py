"""Figures show the numbers they are given, where they belong, also when some cannot be drawn."""

from __future__ import annotations

import math
import re

import pytest

from lockstep.reporting.charts import Series, interval_bar, line_chart, ticks


def vertices(svg: str) -> list[list[tuple[float, float]]]:
    """Per unbroken piece of the first line its corners, in pixels."""
    (way, *_) = re.findall(r'<path d="([^"]+)"', svg)
    pieces = [piece.split("L") for piece in way.split("M")[1:]]
    return [[(float(x), float(y)) for x, y in (corner.split(",") for corner in piece)] for piece in pieces]


def test_points_lie_where_their_values_say() -> None:
    recorded = [(1, 4.0), (2, 2.0), (3, 3.0), (5, 1.0)]
    ((first, *rest),) = vertices(line_chart("loss", [Series("training", recorded)]))
    (_, *values) = recorded
    x_scale = (rest[-1][0] - first[0]) / (5 - 1)
    y_scale = (rest[-1][1] - first[1]) / (1.0 - 4.0)
    assert x_scale > 0 > y_scale
    for (x, y), (step, value) in zip(rest, values, strict=True):
        assert x == pytest.approx(first[0] + x_scale * (step - 1), abs=0.1)
        assert y == pytest.approx(first[1] + y_scale * (value - 4.0), abs=0.1)


def test_a_value_that_cannot_be_drawn_breaks_the_line() -> None:
    pieces = vertices(line_chart("loss", [Series("training", [(1, 1.0), (2, 2.0), (3, math.nan), (4, 2.0), (5, 1.0)])]))
    assert [len(piece) for piece in pieces] == [2, 2]


@pytest.mark.parametrize("points", [[], [(1, math.nan), (2, math.inf)]])
def test_nothing_to_draw_gives_no_figure(points: list[tuple[float, float]]) -> None:
    assert line_chart("loss", [Series("training", points)]) == ""


@pytest.mark.parametrize("points", [[(3, 7.0)], [(1, 0.0), (2, 0.0)], [(1, -5e-9), (2, 5e-9)], [(1, 1e12), (9, 1e12)]])
def test_one_point_flat_lines_and_extremes_are_drawn(points: list[tuple[float, float]]) -> None:
    (piece,) = vertices(line_chart("loss", [Series("training", points)]))
    assert len(piece) == len(points)
    assert all(math.isfinite(x) and math.isfinite(y) for x, y in piece)


def test_a_figure_says_in_words_what_it_shows() -> None:
    svg = line_chart("Loss", [Series("training", [(1, 3.5), (24, 2.25)])])
    assert 'role="img"' in svg
    assert 'aria-label="Loss: training from 3.5 at step 1 to 2.25 at step 24"' in svg


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (2.9, 3.6), (1, 24), (-0.3, 0.011), (0, 5e-5), (1, 2)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high, 4)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    step = found[1] - found[0]
    assert f"{step:e}"[0] in "125"


@pytest.mark.parametrize(("low", "high", "right_of_zero"), [(0.6, 1.3, True), (-0.2, 0.4, False), (-1.3, -0.6, False)])
def test_an_interval_shows_on_which_side_of_zero_it_lies(low: float, high: float, right_of_zero: bool) -> None:
    svg = interval_bar((low + high) / 2, low, high)
    (zero,) = re.findall(r'x1="([\d.]+)"[^>]*class="zero"', svg)
    (start,) = re.findall(r'x1="([\d.]+)"[^>]*class="span"', svg)
    assert (float(start) > float(zero)) is right_of_zero

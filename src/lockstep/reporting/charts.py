"""Figures as inline SVG: colours come from the page's style, so they follow its light and dark scheme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.reporting.html import Html, tag
from lockstep.reporting.words import number

WIDTH, HEIGHT = 300, 176
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 8, 8, 24
_MAX_DOTS = 60


@dataclass(frozen=True)
class Series:
    """One line: (step, value) in order of steps. `kind` picks its colour: main, second or third."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: str = "main"

    @property
    def finite(self) -> list[tuple[float, float]]:
        """The points that can be drawn."""
        return [(step, value) for step, value in self.points if math.isfinite(value)]


@dataclass(frozen=True)
class Axis:
    """Maps values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def line_chart(title: str, series: Sequence[Series], *, marks: Sequence[tuple[float, str]] = ()) -> Html:
    """A line chart; `marks` are steps with a dashed line and a reason (a resume). Empty without a finite point."""
    drawn = [line for line in series if line.finite]
    if not drawn:
        return Html("")
    points = [point for line in drawn for point in line.finite]
    steps, values = [step for step, _ in points], [value for _, value in points]
    x = Axis(*_spread(min(steps), max(steps)), _LEFT, WIDTH - _RIGHT)
    y = Axis(*_padded(min(values), max(values)), HEIGHT - _BOTTOM, _TOP)
    return tag(
        "svg",
        [_horizontal(y, value) for value in ticks(y.low, y.high, 4)],
        [_step_label(x, value) for value in ticks(x.low, x.high, 5) if value == int(value)],
        [_mark(x, step, reason) for step, reason in marks if x.low <= step <= x.high],
        [_line(line, x, y) for line in drawn],
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}: " + "; ".join(_in_words(line) for line in drawn),
        class_="chart",
    )


def legend(names: Sequence[tuple[str, str]]) -> Html:
    """(name, kind) beside its colour, where there is more than one."""
    if len(names) < 2:
        return Html("")
    return tag("ul", [tag("li", name, class_=f"key {kind}") for name, kind in names], class_="legend")


def interval_bar(mean: float, low: float, high: float) -> Html:
    """A 95 % interval beside zero, to see at once whether it lies to the right of it."""
    reach = max(abs(low), abs(high), 1e-12) * 1.15
    x = Axis(min(0.0, -0.25 * reach, low * 1.15), max(0.0, reach), 4, 216)
    return tag(
        "svg",
        tag("line", x1=4, x2=216, y1=11, y2=11, class_="base"),
        tag("line", x1=_px(x(0)), x2=_px(x(0)), y1=2, y2=20, class_="zero"),
        tag("line", x1=_px(x(low)), x2=_px(x(high)), y1=11, y2=11, class_="span"),
        tag("circle", cx=_px(x(mean)), cy=11, r=4.5, class_="mean"),
        viewBox="0 0 220 22",
        role="img",
        aria_label=f"95 % interval from {number(low, 3)} to {number(high, 3)}, zero marked",
        class_="interval",
    )


def share_bar(parts: Sequence[tuple[str, float, str]]) -> Html:
    """Shares of a whole as one bar; parts are (name, amount, css class)."""
    whole = sum(amount for _, amount, _ in parts) or 1.0
    pieces = [
        tag("span", title=f"{name}: {number(amount)}", style=f"width:{100 * amount / whole:.2f}%", class_=kind)
        for name, amount, kind in parts
        if amount
    ]
    words = ", ".join(f"{name} {number(amount)}" for name, amount, _ in parts if amount)
    return tag("div", pieces, class_="shares", role="img", aria_label=words)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers within [low, high], about that many: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _line(line: Series, x: Axis, y: Axis) -> Html:
    runs: list[list[tuple[float, float]]] = [[]]
    for step, value in line.points:
        if math.isfinite(value):
            runs[-1].append((x(step), y(value)))
        elif runs[-1]:
            runs.append([])
    ways = "".join("M" + "L".join(f"{_px(px)},{_px(py)}" for px, py in run) for run in runs if run)
    points = line.finite
    every = max(1, len(points) // _MAX_DOTS)
    dots = [
        tag(
            "circle",
            tag("title", f"{line.name}, step {number(step)}: {number(value)}"),
            cx=_px(x(step)),
            cy=_px(y(value)),
            r=6,
            class_="spot",
        )
        for step, value in points[::every]
    ]
    end = tag("circle", cx=_px(x(points[-1][0])), cy=_px(y(points[-1][1])), r=3, class_="end")
    return tag("g", tag("path", d=ways), dots, end, class_=f"line {line.kind}")


def _horizontal(y: Axis, value: float) -> Html:
    at = _px(y(value))
    label = tag("text", _tick(value), x=_LEFT - 7, y=at, dy="0.32em", text_anchor="end")
    return tag("g", tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=at, y2=at, class_="grid"), label)


def _step_label(x: Axis, value: float) -> Html:
    return tag("text", number(value), x=_px(x(value)), y=HEIGHT - 6, text_anchor="middle")


def _mark(x: Axis, step: float, reason: str) -> Html:
    at = _px(x(step))
    return tag("line", tag("title", reason), x1=at, x2=at, y1=_TOP, y2=HEIGHT - _BOTTOM, class_="mark")


def _in_words(line: Series) -> str:
    (first, start), (last, end) = line.finite[0], line.finite[-1]
    return f"{line.name} from {number(start)} at step {number(first)} to {number(end)} at step {number(last)}"


def _spread(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 1, high + 1)


def _padded(low: float, high: float) -> tuple[float, float]:
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _tick(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.0e}".replace("e-0", "e−") if abs(value) < 1e-3 else f"{value:g}".replace("-", "−")


def _px(value: float) -> str:
    return f"{value:.1f}"

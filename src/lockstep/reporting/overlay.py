"""Curves of several runs of one stage over each other, as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.reporting.charts import Series, legend, line_chart
from lockstep.reporting.html import Html, tag
from lockstep.reporting.style import CSS
from lockstep.reporting.training import PANELS

KINDS = ("main", "second", "third", "fourth", "fifth")
"""Colours; as many runs can be told apart."""
Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Per metric, its points (step, value)."""


def overlay_page(stage: str, runs: Mapping[str, Curves], words: str) -> str:
    """An HTML page with a chart per metric, in which each run has its colour; `words` stand below the title.

    runs: per run its curves, at most `len(KINDS)` of them.
    """
    colours = list(zip(runs, KINDS, strict=False))
    figures = [
        figure
        for title, lines in PANELS.get(stage, ())
        for metric, name in lines
        if (figure := _figure(title if len(lines) == 1 else f"{title} ({name})", metric, runs, colours))
    ]
    body = tag(
        "main",
        tag("h1", f"{stage}: {len(runs)} runs compared"),
        legend(colours),
        tag("pre", words, class_="commands"),
        tag("div", figures, class_="panels"),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{stage}: {', '.join(runs)}"),
        tag("style", Html(CSS)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _figure(title: str, metric: str, runs: Mapping[str, Curves], colours: Sequence[tuple[str, str]]) -> Html:
    series = [Series(run, runs[run][metric], kind) for run, kind in colours if runs[run].get(metric)]
    chart = line_chart(title, series)
    return tag("figure", tag("figcaption", title), chart, class_="panel") if chart else Html("")

"""The page as a whole: its parts in the order in which a reader asks for them."""

from __future__ import annotations

import re

from lockstep.reporting.data import data
from lockstep.reporting.evaluation import evaluation, samples
from lockstep.reporting.html import Html, join, tag
from lockstep.reporting.lineage import lineage
from lockstep.reporting.material import Material
from lockstep.reporting.record import attempts, locks, parameters, reproduce, resources
from lockstep.reporting.style import CSS
from lockstep.reporting.summary import header, tiles, title
from lockstep.reporting.training import training

_PARTS = (evaluation, samples, training, data, lineage, locks, resources, attempts, parameters, reproduce)


def page(material: Material) -> str:
    """The whole report: one HTML file with its style and figures in it, no script, and nothing to fetch."""
    parts = [made for part in _PARTS if (made := part(material))]
    body = tag("main", header(material), _contents(parts), tiles(material), *parts, _footer())
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title(material)),
        tag("style", Html(CSS)),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", body), lang="en") + "\n"


def _contents(parts: list[Html]) -> Html:
    whole = join(parts)
    headings = re.findall(r'<h2 id="([\w-]+)-title">([^<]+)</h2>', whole)
    return tag("nav", [tag("a", Html(name), href=f"#{anchor}") for anchor, name in headings], aria_label="Contents")


def _footer() -> Html:
    return tag(
        "footer", "Made by Lockstep from what the runs recorded. This file needs no network and no Lockstep to be read."
    )

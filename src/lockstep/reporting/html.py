"""HTML from Python values: text is escaped unless it is HTML already."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

_VOID = frozenset({"br", "meta", "link", "line", "path", "rect", "circle"})


class Html(str):
    """A string that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """One element. Attribute names: `_` becomes `-`, a trailing one is dropped (`class_`); None leaves one out."""
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    opening = f"<{name}{''.join(pairs)}>"
    if name in _VOID and not children:
        return Html(f"{opening[:-1]}/>")
    return Html(f"{opening}{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Html:
    """Children one after another; lists are flattened, None is nothing."""
    return Html("".join(_child(child) for child in children))


def table(head: Iterable[Any], rows: Iterable[Iterable[Any]], **attributes: Any) -> Html:
    """A table that scrolls sideways on a narrow screen; a cell may be a ready `td`."""
    top = tag("tr", [tag("th", cell, scope="col") for cell in head])
    body = [tag("tr", [cell if _is_cell(cell) else tag("td", cell) for cell in row]) for row in rows]
    return tag("div", tag("table", tag("thead", top), tag("tbody", body), **attributes), class_="scroll", tabindex="0")


def number_cell(text: Any) -> Html:
    """A right-aligned cell with figures of one width."""
    return tag("td", text, class_="num")


def section(anchor: str, title: str, *children: Any, lead: Any = None) -> Html:
    """A titled part of the page that can be linked to."""
    heading = tag("h2", title, id=f"{anchor}-title")
    return tag(
        "section",
        heading,
        tag("p", lead, class_="lead") if lead else None,
        *children,
        id=anchor,
        aria_labelledby=f"{anchor}-title",
    )


def details(summary: Any, *children: Any) -> Html:
    """Something that is folded away until asked for."""
    return tag("details", tag("summary", summary), *children)


def _child(child: Any) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, (list, tuple)):
        return join(child)
    return html.escape(str(child), quote=False)


def _is_cell(cell: Any) -> bool:
    return isinstance(cell, Html) and cell.startswith(("<td", "<th"))

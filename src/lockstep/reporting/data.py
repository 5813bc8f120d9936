"""What the models learned from: kept and dropped per source and label, and a sample with what is learned marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.reporting.charts import legend, share_bar
from lockstep.reporting.html import Html, number_cell, section, table, tag
from lockstep.reporting.material import Material
from lockstep.reporting.words import number, percent

_TITLES = {"sft": "chats", "prompts": "prompts", "preferences": "preference pairs", "reviews": "reviews"}
_SHARES = (("training", "main"), ("held out", "second"), ("dropped", "gone"))
_UNLABELLED = "unlabelled"
_NUM_SHOWN = 2


def data(material: Material) -> Html:
    """The data section; nothing without a `prepare` stage."""
    if "prepare" not in material.stages:
        return Html("")
    prepare = material.stages["prepare"]
    counts = prepare.metrics.get("counts", {})
    rows = [row for name in _TITLES if name in counts for row in _rows(name, counts[name])]
    head = ("used as", "source", "read", "kept for training", "held out", "dropped")
    shown = prepare.samples.get("sft", [])[:_NUM_SHOWN] if isinstance(prepare.samples, Mapping) else []
    return section(
        "data",
        "What it learned from",
        legend(_SHARES),
        table(head, rows, class_="counts"),
        _tokens(prepare.metrics.get("tokens", {})),
        [_sample(sample) for sample in shown],
        lead="Every text that was read is kept or counted as dropped, with the reason.",
    )


def _rows(section_name: str, sources: Mapping[str, Any]) -> Iterator[list[Any]]:
    for source, counts in sources.items():
        train, held_out, dropped = counts["kept"]["train"], counts["kept"]["eval"], counts["dropped"]
        amounts = (sum(kind.values()) for kind in (train, held_out, dropped))
        parts = [(name, amount, kind) for (name, kind), amount in zip(_SHARES, amounts, strict=True)]
        yield [
            tag("th", _TITLES[section_name], share_bar(parts), scope="row"),
            tag("td", tag("code", source)),
            number_cell(number(counts["read"])),
            number_cell(_by_label(train)),
            number_cell(_by_label(held_out)),
            tag("td", _reasons(dropped)),
        ]


def _by_label(counts: Mapping[str, int]) -> Html:
    whole = tag("strong", number(sum(counts.values())))
    if set(counts) <= {_UNLABELLED}:
        return whole
    return Html(whole + "".join(tag("small", f"{label} {number(count)}") for label, count in counts.items()))


def _reasons(dropped: Mapping[str, int]) -> Any:
    return [tag("small", f"{reason.replace('_', ' ')} {number(count)}") for reason, count in dropped.items()] or "none"


def _tokens(splits: Mapping[str, Mapping[str, Any]]) -> Html | None:
    if not splits:
        return None
    sizes = [
        f"{words} {number(splits[split]['num_tokens'])} in {number(splits[split]['num_rows'])} packed rows, "
        f"{percent(splits[split]['fill'])} full"
        for split, words in (("train", "for training"), ("eval", "held out"))
    ]
    return tag("p", "The chats as tokens: ", "; ".join(sizes), ".", class_="note")


def _sample(sample: Mapping[str, Any]) -> Html:
    pieces = [
        tag("mark", piece["text"]) if piece["supervised"] else tag("span", piece["text"])
        for piece in sample["segments"]
    ]
    learned, whole = sample["num_supervised_tokens"], sample["num_tokens"]
    learns = f"the model learns the marked {number(learned)} of {number(whole)} tokens"
    caption = f"{sample['source']}, {sample['where']}: {learns}."
    return tag("figure", tag("pre", pieces, class_="chat"), tag("figcaption", caption), class_="masked")

"""How training went: the curves that a reader asks for first, one small figure each."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.reporting.charts import Series, legend, line_chart
from lockstep.reporting.html import Html, section, tag
from lockstep.reporting.material import Material, StageFacts
from lockstep.reporting.words import number

Panel = tuple[str, Sequence[tuple[str, str]]]
"""A title, and per line its metric and its name."""

PANELS: dict[str, Sequence[Panel]] = {
    "sft": (
        ("Loss, nats per token", (("loss", "training"), ("eval_loss", "held out"))),
        ("Learning rate", (("learning_rate", "learning rate"),)),
        ("Gradient norm", (("grad_norm", "gradient norm"),)),
        ("Tokens per second", (("tokens_per_s", "tokens per second"),)),
    ),
    "reward": (
        ("Loss", (("loss", "training"), ("eval_loss", "held out"))),
        ("Pairs ranked right", (("accuracy", "training"), ("eval_accuracy", "held out"))),
    ),
    "ppo": (
        ("Score by the reward", (("objective/score", "score"),)),
        ("KL, nats per token", (("objective/kl_per_token", "KL per token"),)),
        ("Score minus weighted KL", (("objective/reward", "objective"),)),
        ("Entropy, nats", (("policy/entropy", "entropy"),)),
        ("Clipped share of tokens", (("policy/clipfrac", "policy"), ("value/clipfrac", "value"))),
        ("Variance the critic explains", (("value/explained_variance", "explained variance"),)),
        ("Distinct token pairs", (("objective/distinct2", "distinct-2"),)),
        ("Tokens per second", (("tokens_per_s/rollout", "rollout"), ("tokens_per_s/update", "update"))),
    ),
}
"""Per stage, the figures that a reader asks for first."""
_TITLES = {"sft": "Fine-tuning", "reward": "Reward model", "ppo": "Alignment"}
_KINDS = ("main", "second", "third")


def training(material: Material) -> Html:
    """The curves of every stage that trained on this machine."""
    groups = [_group(stage) for name, stage in material.stages.items() if name in PANELS]
    shown = [group for group in groups if group]
    if not shown:
        return Html("")
    lead = "Hover over a line for its values. A dashed line is where a later attempt went on from a checkpoint."
    return section("training", "How it trained", *shown, lead=lead)


def _group(stage: StageFacts) -> Html:
    figures = [figure for title, lines in PANELS[stage.name] if (figure := _panel(stage, title, lines))]
    if not figures:
        return Html("")
    return tag("div", tag("h3", _TITLES[stage.name], class_="group"), tag("div", figures, class_="panels"))


def _panel(stage: StageFacts, title: str, lines: Sequence[tuple[str, str]]) -> Html:
    series = [
        Series(name, stage.curves[metric], kind)
        for (metric, name), kind in zip(lines, _KINDS, strict=False)
        if stage.curves.get(metric)
    ]
    chart = line_chart(title, series, marks=stage.resumed_at)
    if not chart:
        return Html("")
    last = tag("span", number(series[0].points[-1][1]), class_="last")
    return tag(
        "figure",
        tag("figcaption", title, last),
        chart,
        legend([(line.name, line.kind) for line in series]),
        class_="panel",
    )

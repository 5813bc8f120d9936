"""The top of the page: what this experiment is and, at a glance, how it came out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.reporting.charts import interval_bar
from lockstep.reporting.html import Html, join, tag
from lockstep.reporting.material import Material, commit_name
from lockstep.reporting.words import duration, moment, number, percent, signed
from lockstep.tracking.described import model_name

_ENOUGH_DIVERSITY = 0.8


def title(material: Material) -> str:
    """The experiment in a few words: the model, and what was done to it."""
    done = [
        word
        for stage, word in (("sft", "fine-tuned"), ("ppo", "aligned"))
        if stage in material.stages and not material.stages[stage].skipped
    ]
    return f"{model_name(material.params)}, {' and '.join(done) or 'as it is'}"


def header(material: Material) -> Html:
    """Title, one line of facts, and where the numbers come from."""
    record, sections = material.newest_record, material.params.get("data", {})
    sources = sorted(
        {
            str(source["source"]).partition(":")[2]
            for section in sections.values()
            if isinstance(section, Mapping)
            for source in section.get("sources", [])
        }
    )
    seconds = [stage.seconds for stage in material.stages.values() if stage.seconds]
    facts = [
        ("data", ", ".join(sources)),
        ("seed", material.params.get("seed")),
        ("started", moment(first_record["created"]) if (first_record := _first_record(material)) else None),
        ("time", duration(sum(seconds)) if seconds else None),
        ("hardware", record.get("provenance", {}).get("hardware", {}).get("class")),
        ("commit", commit_name(record)),
    ]
    shown = [
        tag("li", tag("span", name), " ", tag("strong", value)) for name, value in facts if value not in (None, "")
    ]
    return tag(
        "header",
        tag("p", "Lockstep report", class_="kicker"),
        tag("h1", title(material)),
        tag("ul", shown, class_="facts"),
    )


def tiles(material: Material) -> Html:
    """What was reached, as far as it was measured; nothing when `evaluate` was turned off."""
    metrics = material.stages["evaluate"].metrics if "evaluate" in material.stages else {}
    sft, ppo = metrics.get("sft", {}), metrics.get("ppo", {})
    found = [_perplexity(sft) if "perplexity_tuned" in sft else None]
    if ppo:
        found += [
            _gain("Reward gain", ppo, "reward", "the score that PPO was trained on"),
            _gain("Second judge's gain", ppo, "judge", "a judge that PPO never saw"),
            _divergence(ppo),
            _diversity(ppo),
        ]
    shown = [tile for tile in found if tile]
    return tag("div", shown, class_="tiles") if shown else Html("")


def _tile(name: str, value: Any, note: Any, figure: Html | None, good: bool | None) -> Html:
    verdict = {True: "good", False: "poor", None: "plain"}[good]
    return tag(
        "div",
        tag("h3", name),
        tag("p", value, class_="value"),
        figure,
        tag("p", note, class_="note"),
        class_=f"tile {verdict}",
    )


def _perplexity(sft: Mapping[str, Any]) -> Html:
    before, after = sft["perplexity_base"], sft["perplexity_tuned"]
    value = join([tag("span", number(before, 3), class_="before"), " → ", number(after, 3)])
    change = f"{percent(after / before - 1)} on {number(sft['num_eval_tokens'])} held-out tokens"
    return _tile("Perplexity", value, change, None, after < before)


def _gain(name: str, ppo: Mapping[str, Any], of: str, meaning: str) -> Html:
    low, high = ppo[f"{of}_gain_ci95"]
    mean = ppo.get(f"{of}_gain", ppo[f"{of}_policy"] - ppo[f"{of}_reference"])
    interval = f"95 % interval {signed(low)} to {signed(high)}; {meaning}"
    return _tile(
        name, signed(mean), interval, interval_bar(mean, low, high), True if low > 0 else False if high < 0 else None
    )


def _divergence(ppo: Mapping[str, Any]) -> Html:
    note = "nats per token between policy and reference: how far it moved"
    return _tile("KL", number(ppo["kl_per_token"], 3), note, None, None)


def _diversity(ppo: Mapping[str, Any]) -> Html:
    ratio = ppo["distinct2_ratio"]
    counted = f"{number(ppo['distinct2_reference'], 3)} → {number(ppo['distinct2_policy'], 3)} " if _both(ppo) else ""
    note = f"{counted}distinct word pairs, policy to reference"
    return _tile("Diversity kept", percent(ratio), note, None, ratio >= _ENOUGH_DIVERSITY)


def _both(ppo: Mapping[str, Any]) -> bool:
    return "distinct2_reference" in ppo and "distinct2_policy" in ppo


def _first_record(material: Material) -> Mapping[str, Any]:
    return next((stage.record for stage in material.stages.values() if stage.record), {})

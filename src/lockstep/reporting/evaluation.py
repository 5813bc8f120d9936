"""What was measured after training, and texts to read: the reference's and the policy's for the same prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.reporting.html import Html, details, number_cell, section, table, tag
from lockstep.reporting.material import Material
from lockstep.reporting.words import number, signed

_SHOWN_OPEN = 4


def evaluation(material: Material) -> Html:
    """The table of before and after."""
    if "evaluate" not in material.stages or not material.stages["evaluate"].metrics:
        return Html("")
    metrics = material.stages["evaluate"].metrics
    rows = [row for row in (*_sft_rows(metrics.get("sft", {})), *_ppo_rows(metrics.get("ppo", {}))) if row]
    head = ("measured", "before", "after", "difference", "95 % interval")
    num_prompts = metrics.get("ppo", {}).get("num_prompts")
    lead = (
        f"Rewards and judges are means over {number(num_prompts)} held-out prompts, paired by prompt."
        if num_prompts
        else None
    )
    return section("evaluation", "What came out", table(head, rows), lead=lead)


def samples(material: Material) -> Html:
    """Texts side by side, with what reward and judge gave."""
    found: list[Mapping[str, Any]] = list(material.stages["evaluate"].samples) if "evaluate" in material.stages else []
    if not found:
        return Html("")
    cards = [_pair(sample) for sample in found]
    lead = "Held-out prompts, not picked: both sides continue the same words with the same sampling noise."
    rest = details(f"{len(cards) - _SHOWN_OPEN} more", cards[_SHOWN_OPEN:]) if len(cards) > _SHOWN_OPEN else None
    return section("samples", "Texts side by side", cards[:_SHOWN_OPEN], rest, lead=lead)


def _sft_rows(sft: Mapping[str, Any]) -> list[list[Any]]:
    if "perplexity_tuned" not in sft:
        return []
    before, after = sft["perplexity_base"], sft["perplexity_tuned"]
    return [_row("perplexity of held-out chats", before, after, None)]


def _ppo_rows(ppo: Mapping[str, Any]) -> list[list[Any]]:
    if not ppo:
        return []
    rows = [
        _row("reward", ppo["reward_reference"], ppo["reward_policy"], ppo["reward_gain_ci95"]),
        _row("second judge", ppo.get("judge_reference"), ppo.get("judge_policy"), ppo["judge_gain_ci95"]),
        _row("distinct word pairs", ppo.get("distinct2_reference"), ppo.get("distinct2_policy"), None),
        _row("KL to the reference, nats per token", 0.0, ppo["kl_per_token"], None),
    ]
    return rows


def _row(name: str, before: float | None, after: float | None, interval: Any) -> list[Any]:
    difference = signed(after - before) if before is not None and after is not None else "–"
    bounds = f"{signed(interval[0])} to {signed(interval[1])}" if interval else "–"
    return [
        tag("th", name, scope="row"),
        *(number_cell(cell) for cell in (number(before), number(after), difference, bounds)),
    ]


def _pair(sample: Mapping[str, Any]) -> Html:
    prompt = str(sample["prompt"])
    return tag(
        "article",
        tag("p", tag("span", "prompt", class_="label"), " ", prompt, class_="prompt"),
        tag("div", _side("reference", sample, prompt), _side("policy", sample, prompt), class_="sides"),
        class_="pair",
    )


def _side(role: str, sample: Mapping[str, Any], prompt: str) -> Html:
    text = str(sample[role]).removeprefix(prompt).strip()
    scores = [
        tag("span", f"{name} ", tag("strong", number(sample[f"{name}_{role}"], 3)))
        for name in ("reward", "judge")
        if f"{name}_{role}" in sample
    ]
    return tag(
        "div",
        tag("p", role, class_="label"),
        tag("blockquote", text or "(nothing)"),
        tag("p", scores, class_="scores"),
        class_=role,
    )

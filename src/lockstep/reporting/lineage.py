"""From raw data to weights: the stages as cards, every artefact with its hash, the same one in the same colour."""

from __future__ import annotations

from lockstep.reporting.html import Html, section, tag
from lockstep.reporting.material import Material, StageFacts
from lockstep.reporting.words import duration, number, percent, short

_WHAT = {
    "prepare": "raw text to tokens, prompts, reviews",
    "sft": "supervised fine-tuning",
    "reward": "reward model from preferences",
    "ppo": "alignment with LoRA-PPO",
    "evaluate": "measured on held-out data",
}
_HUES = {
    "outside": "from-outside",
    "prepare": "from-prepare",
    "sft": "from-sft",
    "reward": "from-reward",
    "ppo": "from-ppo",
}


def lineage(material: Material) -> Html:
    """One card per stage in the order they ran."""
    cards = [tag("li", _card(stage, material)) for stage in material.stages.values()]
    return section(
        "lineage",
        "From raw data to weights",
        tag("ol", cards, class_="flow"),
        lead="Each stage reads what the ones before it made, and nothing else. A chip is an input with the start of "
        "its hash; its colour says which stage made it.",
    )


def _card(stage: StageFacts, material: Material) -> Html:
    heading = tag("h3", tag("span", stage.name, class_=f"dot {_HUES.get(stage.name, '')}"))
    if stage.skipped:
        return tag("div", heading, tag("p", "turned off in the parameters", class_="note"), class_="card off")
    seconds = stage.seconds
    return tag(
        "div",
        heading,
        tag("p", _WHAT.get(stage.name, ""), class_="note"),
        tag("p", _key_figure(stage), class_="figure"),
        tag("p", "reads", class_="label"),
        tag("ul", [_chip(stage, name, digest, material) for name, digest in _inputs(stage)], class_="chips"),
        _made(stage),
        tag(
            "p", tag("span", f"run {stage.run_id}"), tag("span", duration(seconds)) if seconds else None, class_="foot"
        ),
        class_="card",
    )


def _inputs(stage: StageFacts) -> list[tuple[str, str]]:
    return sorted(stage.result.get("inputs", {}).items())


def _chip(stage: StageFacts, name: str, digest: str, material: Material) -> Html:
    origin = material.producers.get(stage.name, {}).get(name, "outside")
    came = "from outside" if origin == "outside" else f"made by {origin}"
    return tag(
        "li", name, " ", tag("code", short(digest)), class_=f"chip {_HUES[origin]}", title=f"{name}, {came}: {digest}"
    )


def _made(stage: StageFacts) -> Html | None:
    digest = stage.result.get("weights_sha256")
    if not digest:
        return None
    chip = tag("li", "weights ", tag("code", short(digest)), class_=f"chip {_HUES.get(stage.name, '')}", title=digest)
    return tag("div", tag("p", "makes", class_="label"), tag("ul", chip, class_="chips"))


def _key_figure(stage: StageFacts) -> str:
    """The one number by which a stage is known."""
    metrics = stage.metrics
    if stage.name == "prepare":
        return f"{number(metrics['tokens']['train']['num_tokens'])} training tokens"
    if stage.name == "sft":
        return f"held-out perplexity {number(metrics['eval_perplexity'])}"
    if stage.name == "ppo":
        scores = [value for _, value in stage.curves.get("objective/score", [])]
        return f"reward {number(scores[0], 3)} → {number(scores[-1], 3)}" if scores else ""
    if stage.name == "reward" and "eval_accuracy" in metrics:
        return f"{percent(metrics['eval_accuracy'])} of held-out pairs right"
    if stage.name == "evaluate" and "sft" in metrics:
        return f"on {number(metrics['sft']['num_eval_tokens'])} held-out tokens"
    return ""

"""The sections of a model card, in Markdown; each gives nothing where the record does not know."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lockstep.reporting.material import Material, StageFacts
from lockstep.reporting.record import AGAIN_NEEDS, hardware_facts, parameter_text, stages_again, whole_again
from lockstep.reporting.words import duration, moment, number, seconds_between, signed, size
from lockstep.tracking.described import flatten

_NUM_SAMPLES = 3
_MADE_FROM = "A run is named by what decides it: its parameters, inputs, code and environment. The same locks on the "
_ROLES = ("reference", "policy")


def _evaluation(run: StageFacts, material: Material) -> str:
    if "evaluate" not in material.stages:
        return ""
    metrics = material.stages["evaluate"].metrics.get(run.name, {})
    if run.name == "sft" and "perplexity_tuned" in metrics:
        rows = [_measured("perplexity of held-out chats", metrics["perplexity_base"], metrics["perplexity_tuned"])]
        lead = f"On {number(metrics.get('num_eval_tokens'))} held-out tokens; before is the base model."
    elif run.name == "ppo" and metrics:
        rows = [
            _measured(
                name, metrics.get(f"{key}_reference"), metrics.get(f"{key}_policy"), metrics.get(f"{key}_gain_ci95")
            )
            for key, name in (("reward", "reward"), ("judge", "second judge"), ("distinct2", "distinct word pairs"))
        ]
        rows.append(_measured("KL to the reference, nats per token", 0.0, metrics.get("kl_per_token")))
        lead = (
            f"Means over {number(metrics.get('num_prompts'))} held-out prompts, paired by prompt; before is the "
            "reference that PPO began from. PPO was trained on the reward and never saw the second judge."
        )
    else:
        return ""
    head = ("measured", "before", "after", "difference", "95 % interval")
    return f"## Evaluation\n\n{lead}\n\n{_table(head, rows)}"


def _measured(name: str, before: float | None, after: float | None, interval: Any = None) -> list[str]:
    difference = signed(after - before) if before is not None and after is not None else "–"
    return [name, number(before), number(after), difference, " to ".join(map(signed, interval)) if interval else "–"]


def _samples(run: StageFacts, material: Material) -> str:
    if run.name != "ppo" or "evaluate" not in material.stages:
        return ""
    shown = list(material.stages["evaluate"].samples)[:_NUM_SAMPLES]
    if not shown:
        return ""
    lead = "Held-out prompts in the order in which they were drawn, not picked."
    rows = [[str(sample["prompt"]), *(_continued(sample, role) for role in _ROLES)] for sample in shown]
    return f"## Samples\n\n{lead}\n\n{_table(('prompt', *_ROLES), rows)}"


def _continued(sample: Mapping[str, Any], role: str) -> str:
    text = str(sample[role]).removeprefix(str(sample["prompt"])).strip()
    return f"{text} (reward {number(sample[f'reward_{role}'], 3)})" if f"reward_{role}" in sample else text


def _lineage(_: StageFacts, material: Material) -> str:
    lead = f"{_MADE_FROM}same kind of hardware give the same bits."
    return "\n".join(["## From raw data to weights", "", lead, "", *map(_stage, material.stages.values())])


def _stage(stage: StageFacts) -> str:
    if stage.skipped:
        return f"- **{stage.name}**: turned off in the parameters"
    locks = stage.record.get("locks", {})
    environment = locks.get("environment", {})
    facts = [(f"reads {name}", digest) for name, digest in sorted(stage.result.get("inputs", {}).items())]
    facts += [("code", locks.get("code")), (f"environment ({environment.get('flavour')})", environment.get("id"))]
    facts += [("makes weights", stage.result.get("weights_sha256"))]
    lines = [f"  - {name} `{digest}`" for name, digest in facts if digest]
    return "\n".join([f"- **{stage.name}** run `{stage.run_id}`", *lines])


def _data(_: StageFacts, material: Material) -> str:
    if "prepare" not in material.stages:
        return ""
    counts = material.stages["prepare"].metrics.get("counts", {})
    rows = [
        [section, source, number(found["read"]), *(number(sum(kind.values())) for kind in _kept_and_dropped(found))]
        for section, sources in counts.items()
        for source, found in sources.items()
    ]
    head = ("used as", "source", "read", "kept for training", "held out", "dropped")
    return f"## Data\n\n{_table(head, rows)}" if rows else ""


def _kept_and_dropped(found: Mapping[str, Any]) -> tuple[Mapping[str, int], ...]:
    return found["kept"]["train"], found["kept"]["eval"], found["dropped"]


def _parameters(run: StageFacts, _: Material) -> str:
    flat = flatten(run.record["locks"]["params"])
    rows = [[f"`{name}`", f"`{parameter_text(value)}`"] for name, value in flat.items()]
    lead = "All parameters that decided this run."
    return f"## Parameters\n\n{lead}\n\n{_table(('parameter', 'value'), rows)}"


def _resources(_: StageFacts, material: Material) -> str:
    stages = [stage for stage in material.stages.values() if stage.attempts]
    if not stages:
        return ""
    rows = [_took(stage) for stage in stages]
    facts = [f"- {name}: {value}" for name, value in hardware_facts(material)]
    table = _table(("stage", "time", "processes", "peak memory", "GPU energy"), rows)
    return "\n".join(["## Time and hardware", "", table, "", *facts])


def _took(stage: StageFacts) -> list[str]:
    newest = stage.attempts[-1]
    return [
        stage.name,
        duration(stage.seconds) if stage.seconds is not None else "–",
        f"{newest.get('num_processes', '–')} × {newest.get('threads_per_process', '–')} threads",
        size(stage.peak_memory_bytes) if stage.peak_memory_bytes else "–",
        f"{number(stage.energy_wh, 3)} Wh" if stage.energy_wh else "not counted",
    ]


def _attempts(_: StageFacts, material: Material) -> str:
    rows = [
        [
            stage.name,
            str(attempt["attempt"]),
            moment(attempt["started"]),
            duration(seconds_between(attempt["started"], attempt["ended"])) if "ended" in attempt else "–",
            f"{attempt['start_step']} → {attempt['end_step']}" if attempt.get("end_step") else "–",
            str(attempt["reason"]),
        ]
        for stage in material.stages.values()
        for attempt in stage.attempts
    ]
    head = ("stage", "attempt", "started", "time", "steps", "ended with")
    return f"## Attempts\n\n{_table(head, rows)}" if rows else ""


def again(run: StageFacts, material: Material, export: str, step: int | None) -> str:
    """The commands that make the weights again, `export` being the last; `step`: of a checkpoint, which gets pruned."""
    lines = whole_again(material)
    if step is not None:
        before = [f"./lockstep run {name}" for name in material.stages if name != run.name]
        up_to = f"./lockstep run {run.name} --until-step {step}   # ends with 85: saved"
        lines = [*lines[:-1], "./lockstep fetch", *before, up_to]
    whole, single = "\n".join([*lines, export]), "\n".join(stages_again(material))
    return (
        f"## Make it again\n\n{AGAIN_NEEDS}\nWhere params.yaml of that commit says something else, write the "
        f"parameters above into it.\n\n```sh\n{whole}\n```\n\n"
        f"Or one stage, where its run is recorded, compared with this one at the end:\n\n```sh\n{single}\n```"
    )


SECTIONS: tuple[Callable[[StageFacts, Material], str], ...] = (
    _evaluation,
    _samples,
    _data,
    _lineage,
    _parameters,
    _resources,
    _attempts,
)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    """A cell is one line; a bar or an angle bracket in it is text."""
    plain = [re.sub(r"[\r\n\t ]+", " ", cell).strip().replace("|", "\\|").replace("<", "&lt;") for cell in cells]
    return f"| {' | '.join(plain)} |"

"""The sections of a model card, in Markdown; each gives nothing where the record does not know."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lockstep.reporting.family import Family
from lockstep.reporting.material import StageFacts
from lockstep.reporting.record import (
    AGAIN_NEEDS,
    hardware_facts,
    parameter_text,
    peak_memory,
    stages_again,
    whole_again,
)
from lockstep.reporting.words import duration, moment, number, seconds_between, signed
from lockstep.tracking.described import flatten

_NUM_SAMPLES = 3
_ROLES = ("reference", "policy")


def _evaluation(of: Family) -> str:
    compared = of.evaluation.metrics.get(of.run.name, {}) if of.evaluation else {}
    if of.run.name == "ppo":
        lead, rows = _aligned(compared)
    elif of.run.name == "reward":
        lead, rows = _ranked(of.run.metrics)
    else:
        lead, rows = _tuned({**of.run.metrics, **compared})
    head = ("measured", "before", "after", "difference", "95 % interval")
    measured_by = f" (`evaluate` run `{of.evaluation.run_id}`)" if of.evaluation else ""
    return f"## Evaluation\n\n{lead}{measured_by}\n\n{_table(head, rows)}" if rows else ""


def _tuned(metrics: Mapping[str, Any]) -> tuple[str, list[list[str]]]:
    after = metrics.get("perplexity_tuned", metrics.get("eval_perplexity"))
    if after is None:
        return "", []
    lead = f"On {number(metrics.get('num_eval_tokens'))} held-out tokens; before is the base model."
    return lead, [_measured("perplexity of held-out chats", metrics.get("perplexity_base"), after)]


def _ranked(metrics: Mapping[str, Any]) -> tuple[str, list[list[str]]]:
    if "eval_accuracy" not in metrics:
        return "", []
    lead = f"On {number(metrics.get('num_eval_pairs'))} held-out pairs."
    return lead, [_measured("pairs ranked right", None, metrics["eval_accuracy"])]


def _aligned(metrics: Mapping[str, Any]) -> tuple[str, list[list[str]]]:
    if not metrics:
        return "", []
    rows = [
        _measured(name, *(metrics.get(f"{key}_{part}") for part in (*_ROLES, "gain_ci95")))
        for key, name in (("reward", "reward"), ("judge", "second judge"), ("distinct2", "distinct word pairs"))
    ]
    rows.append(_measured("KL to the reference, nats per token", 0.0, metrics.get("kl_per_token")))
    lead = (
        f"Means over {number(metrics.get('num_prompts'))} held-out prompts, paired by prompt; before is the "
        "reference that PPO began from. PPO was trained on the reward and never saw the second judge."
    )
    return lead, rows


def _measured(name: str, before: float | None, after: float | None, interval: Any = None) -> list[str]:
    difference = signed(after - before) if before is not None and after is not None else "–"
    return [name, number(before), number(after), difference, " to ".join(map(signed, interval)) if interval else "–"]


def _samples(of: Family) -> str:
    if of.run.name != "ppo" or of.evaluation is None:
        return ""
    shown = list(of.evaluation.samples)[:_NUM_SAMPLES]
    if not shown:
        return ""
    lead = "Held-out prompts in the order in which they were drawn, not picked."
    rows = [[str(sample["prompt"]), *(_continued(sample, role) for role in _ROLES)] for sample in shown]
    return f"## Samples\n\n{lead}\n\n{_table(('prompt', *_ROLES), rows)}"


def _continued(sample: Mapping[str, Any], role: str) -> str:
    text = str(sample[role]).removeprefix(str(sample["prompt"])).strip()
    return f"{text} (reward {number(sample[f'reward_{role}'], 3)})" if f"reward_{role}" in sample else text


def _lineage(of: Family) -> str:
    lead = (
        "A run is named by what decides it: its parameters, inputs, code and environment. The same locks on the same "
        "kind of hardware give the same bits."
    )
    return "\n".join(["## From raw data to weights", "", lead, "", *map(_stage, of.material.stages.values())])


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


def _data(of: Family) -> str:
    if "prepare" not in of.material.stages:
        return ""
    counts = of.material.stages["prepare"].metrics.get("counts", {})
    rows = [
        [section, source, number(found["read"]), *(number(sum(kind.values())) for kind in _kept_and_dropped(found))]
        for section, sources in counts.items()
        for source, found in sources.items()
    ]
    head = ("used as", "source", "read", "kept for training", "held out", "dropped")
    return f"## Data\n\n{_table(head, rows)}" if rows else ""


def _kept_and_dropped(found: Mapping[str, Any]) -> tuple[Mapping[str, int], ...]:
    return found["kept"]["train"], found["kept"]["eval"], found["dropped"]


def _parameters(of: Family) -> str:
    before = [stage for stage in of.material.stages.values() if stage.record and stage is not of.run]
    folded = [f"<details><summary>Of {stage.name}</summary>\n\n{_locked(stage)}\n\n</details>" for stage in before]
    return "\n\n".join(["## Parameters", "All that decided this run.", _locked(of.run), *folded])


def _locked(stage: StageFacts) -> str:
    flat = flatten(stage.record["locks"]["params"])
    return _table(("parameter", "value"), [[f"`{name}`", f"`{parameter_text(v)}`"] for name, v in flat.items()])


def _resources(of: Family) -> str:
    stages = [stage for stage in of.material.stages.values() if stage.attempts]
    if not stages:
        return ""
    rows = [_took(stage) for stage in stages]
    facts = [f"- {name}: {value}" for name, value in hardware_facts(of.material)]
    table = _table(("stage", "time", "processes", "peak memory", "GPU energy"), rows)
    return "\n".join(["## Time and hardware", "", table, "", *facts])


def _took(stage: StageFacts) -> list[str]:
    newest = stage.attempts[-1]
    return [
        stage.name,
        duration(stage.seconds) if stage.seconds is not None else "–",
        f"{newest.get('num_processes', '–')} × {newest.get('threads_per_process', '–')} threads",
        peak_memory(stage),
        f"{number(stage.energy_wh, 3)} Wh" if stage.energy_wh else "not counted",
    ]


def _attempts(of: Family) -> str:
    rows = [
        [
            stage.name,
            str(attempt["attempt"]),
            moment(attempt["started"]),
            duration(seconds_between(attempt["started"], attempt["ended"])) if "ended" in attempt else "–",
            f"{attempt['start_step']} → {attempt['end_step']}" if attempt.get("end_step") else "–",
            str(attempt["reason"]),
        ]
        for stage in of.material.stages.values()
        for attempt in stage.attempts
    ]
    head = ("stage", "attempt", "started", "time", "steps", "ended with")
    return f"## Attempts\n\n{_table(head, rows)}" if rows else ""


def again(of: Family, export: str, step: int | None) -> str:
    """The commands that make the weights again, `export` being the last; `step`: of a checkpoint, which gets pruned."""
    lines = whole_again(of.material)
    if step is not None:
        before = [f"./lockstep run {name}" for name in of.material.stages if name != of.run.name]
        up_to = f"./lockstep run {of.run.name} --until-step {step}   # ends with 85: saved"
        lines = [*lines[:-1], "./lockstep fetch", *before, up_to]
    whole, single = "\n".join([*lines, export]), "\n".join(stages_again(of.material))
    return (
        f"## Make it again\n\n{AGAIN_NEEDS}\nWhere params.yaml of that commit says something else, write the "
        f"parameters above into it.\n\n```sh\n{whole}\n```\n\n"
        f"Or one stage, where its run is recorded, compared with this one at the end:\n\n```sh\n{single}\n```"
    )


SECTIONS: tuple[Callable[[Family], str], ...] = (
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

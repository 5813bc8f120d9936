"""What was locked, what it took, what stopped it, and the exact commands to make it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.foundation.files import canonical_json, sha256_bytes
from lockstep.reporting.html import Html, details, number_cell, section, table, tag
from lockstep.reporting.material import Material, StageFacts, commit_name
from lockstep.reporting.words import duration, moment, number, seconds_between, short, size

AGAIN_NEEDS = "On Linux with git, make and Python 3.11. Nothing runs that the locks do not name."


def locks(material: Material) -> Html:
    """What decided each stage, by hash."""
    head = ("stage", "run", "parameters", "inputs", "code", "environment", "weights made")
    rows = [_lock_row(stage) for stage in material.stages.values() if not stage.skipped]
    lead = (
        "A run is named by what decides it. The same locks on the same kind of hardware give the same bits; ",
        tag("code", "lockstep compare"),
        " says which of them differ between two runs.",
    )
    return section("locks", "What was locked", table(head, rows, class_="locks"), lead=lead)


def resources(material: Material) -> Html:
    """Time, memory and hardware."""
    stages = [stage for stage in material.stages.values() if stage.record]
    if not stages:
        return Html("")
    longest = max((stage.seconds or 0.0 for stage in stages), default=0.0) or 1.0
    with_energy = any(stage.energy_wh for stage in stages)
    head = ["stage", "time", "", "processes", "peak memory", *(["GPU energy"] if with_energy else [])]
    rows = [_resource_row(stage, longest, with_energy) for stage in stages]
    rows.append([tag("th", "all", scope="row"), number_cell(duration(sum(s.seconds or 0.0 for s in stages)))])
    return section("resources", "What it took", table(head, rows, class_="resources"), _hardware(material))


def attempts(material: Material) -> Html:
    """Every start of every stage, and what ended it."""
    rows = [_attempt_row(stage, attempt) for stage in material.stages.values() for attempt in stage.attempts]
    if not rows:
        return Html("")
    head = ("stage", "attempt", "started", "time", "steps", "ended with")
    return section("attempts", "Attempts", table(head, rows))


def parameters(material: Material) -> Html:
    """All parameters, folded by section."""
    scalars = {key: value for key, value in material.params.items() if not isinstance(value, Mapping)}
    groups = {key: value for key, value in material.params.items() if isinstance(value, Mapping)}
    rows = [
        [tag("th", key, scope="row"), tag("td", tag("code", parameter_text(value)))] for key, value in scalars.items()
    ]
    folded = [details(name, table(("parameter", "value"), _flat_rows(group))) for name, group in groups.items()]
    lead = ("The section ", tag("code", "run"), " decides nothing: it says how often to save, log and show.")
    return section("parameters", "Parameters", table(("parameter", "value"), rows), folded, lead=lead)


def reproduce(material: Material) -> Html:
    """Commands for someone with nothing but this page and the repository."""
    return section(
        "reproduce",
        "Make it again",
        _commands(whole_again(material)),
        tag("p", "Or one stage, where its run is recorded, compared with this one at the end:"),
        _commands(stages_again(material)),
        lead=AGAIN_NEEDS,
    )


def whole_again(material: Material) -> list[str]:
    """The commands that run the whole experiment again, from the same commit."""
    git = material.newest_record.get("provenance", {}).get("git", {})
    commit, remote = git.get("commit", "unknown"), public_remote(material) or "<address of the repository>"
    lines = [f"git clone {remote} lockstep && cd lockstep", f"git checkout {commit}"]
    if git.get("dirty") is True:
        last = next(reversed([stage for stage in material.stages.values() if stage.record]))
        lines.append(f"git apply dirty.diff   # kept beside run.json of {last.name} {last.run_id}")
    return [*lines, "make setup", "make repro"]


def public_remote(material: Material) -> str | None:
    """Where the repository can be had from elsewhere; a path of the machine that trained is no such place."""
    remote = material.newest_record.get("provenance", {}).get("git", {}).get("remote")
    return remote if remote and ("://" in remote or "@" in remote) and not remote.startswith("file:") else None


def stages_again(material: Material) -> list[str]:
    """The commands that run one stage each again."""
    stages = [stage for stage in material.stages.values() if stage.record]
    return [f"./lockstep rerun {stage.run_id}   # {stage.name} alone, with a verdict" for stage in stages]


def _commands(lines: list[str]) -> Html:
    return tag("pre", tag("code", "\n".join(lines)), class_="commands")


def _lock_row(stage: StageFacts) -> list[Any]:
    locked, result = stage.record.get("locks", {}), stage.result
    inputs = [tag("small", f"{name} ", _hash(digest)) for name, digest in sorted(result.get("inputs", {}).items())]
    environment = locked.get("environment", {})
    return [
        tag("th", stage.name, scope="row"),
        tag("td", tag("code", stage.run_id)),
        tag("td", _hash(sha256_bytes(canonical_json(locked["params"]).encode()) if locked else None)),
        tag("td", inputs),
        tag("td", _hash(locked.get("code")), tag("small", f"commit {commit_name(stage.record)}")),
        tag("td", environment.get("flavour"), " ", _hash(environment.get("id"))),
        tag("td", tag("code", result["weights_sha256"], class_="whole") if result.get("weights_sha256") else "–"),
    ]


def _hash(digest: str | None) -> Html:
    return tag("code", short(digest), title=digest)


def _resource_row(stage: StageFacts, longest: float, with_energy: bool) -> list[Any]:
    seconds = stage.seconds or 0.0
    bar = tag("div", tag("span", style=f"width:{100 * seconds / longest:.1f}%", class_="main"), class_="shares")
    newest = stage.attempts[-1] if stage.attempts else {}
    energy = [number_cell(f"{number(stage.energy_wh, 3)} Wh" if stage.energy_wh else "–")] if with_energy else []
    return [
        tag("th", stage.name, scope="row"),
        number_cell(duration(seconds)),
        tag("td", bar, class_="bar"),
        number_cell(f"{newest.get('num_processes', '–')} × {newest.get('threads_per_process', '–')} threads"),
        number_cell(peak_memory(stage)),
        *energy,
    ]


def peak_memory(stage: StageFacts) -> str:
    """The most memory that a stage held, and per GPU what was planned beside what was measured."""
    if stage.against_plan is not None:
        planned, measured = stage.against_plan
        return f"{size(measured)} per GPU, planned {size(planned)}"
    return size(stage.peak_memory_bytes) if stage.peak_memory_bytes else "–"


def _hardware(material: Material) -> Html:
    facts = hardware_facts(material)
    return tag("dl", [[tag("dt", name), tag("dd", value)] for name, value in facts], class_="hardware")


def hardware_facts(material: Material) -> list[tuple[str, str]]:
    """What the newest run ran on, as (name, value); what is not known is left out."""
    provenance = material.newest_record["provenance"]
    hardware, cpu = provenance["hardware"], provenance["hardware"]["cpu"]
    memory = f", {size(cpu['memory_bytes'])} memory" if cpu.get("memory_bytes") else ""
    gpus = "; ".join(f"{gpu['model']}, {size(gpu['memory_bytes'])}, driver {gpu['driver']}" for gpu in hardware["gpus"])
    facts = [
        ("processor", f"{cpu['model']} ({cpu['isa']}), {cpu['num_cores']} cores{memory}"),
        ("graphics", gpus or "none"),
        ("system", provenance.get("platform")),
        ("Python", provenance.get("python")),
    ]
    return [(name, value) for name, value in facts if value]


def _attempt_row(stage: StageFacts, attempt: Mapping[str, Any]) -> list[Any]:
    took = duration(seconds_between(attempt["started"], attempt["ended"])) if "ended" in attempt else "–"
    steps = f"{attempt['start_step']} → {attempt['end_step']}" if attempt.get("end_step") else "–"
    return [
        tag("th", stage.name, scope="row"),
        number_cell(attempt["attempt"]),
        tag("td", moment(attempt["started"])),
        number_cell(took),
        number_cell(steps),
        tag("td", attempt["reason"]),
    ]


def _flat_rows(group: Mapping[str, Any], prefix: str = "") -> list[list[Any]]:
    rows: list[list[Any]] = []
    for key, value in group.items():
        if isinstance(value, Mapping):
            rows += _flat_rows(value, f"{prefix}{key}.")
        else:
            rows.append([tag("th", f"{prefix}{key}", scope="row"), tag("td", tag("code", parameter_text(value)))])
    return rows


def parameter_text(value: Any) -> str:
    """A parameter's value on one line."""
    if isinstance(value, list):
        return ", ".join(parameter_text(item) for item in value)
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{key}: {parameter_text(item)}" for key, item in value.items() if item is not None) + "}"
        )
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

"""A plan for the terminal: a stacked bar per phase, the verdict, and the numbers around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lockstep.planning.results import PHASES, Kind

_GIB = 1 << 30
_BAR_WIDTH = 48
COLOURS = {
    Kind.PARAMETERS: "#4269d0",
    Kind.GRADIENTS: "#efb118",
    Kind.OPTIMIZER: "#97bbf5",
    Kind.ACTIVATIONS: "#3ca951",
    Kind.KV_CACHE: "#a463f2",
    Kind.UNSHARDED: "#6cc5b0",
    Kind.COMMUNICATION: "#ff8ab7",
    Kind.TEMPORARY: "#9498a0",
}
"""One colour per kind, in the terminal and in figures."""
_SHADES = "█▓▒░▚▞▤▦"
"""Kinds stay apart without colour, too."""
_VERDICTS = {"fits": "green", "tight": "yellow", "no": "red"}
_WORDS = {"fits": "fits", "tight": "tight", "no": "does not fit"}


def show(plan: dict[str, Any], console: Console) -> None:
    """Prints a plan (as JSON data)."""
    console.print(Text(f"{plan['name']} on {plan['hardware']}", style="bold"))
    for stage in plan["stages"].values():
        console.print(_stage(stage))


def verdict_line(stage: dict[str, Any]) -> str:
    """One line: what is needed, what is there, what is left."""
    need = stage["peak_gpu_bytes"] + stage["allowance_bytes"]
    return (
        f"{_WORDS[stage['verdict']]}: {_gib(stage['peak_gpu_bytes'])} tensors + {_gib(stage['allowance_bytes'])} "
        f"allowance = {_gib(need)} of {_gib(stage['capacity_bytes'])} GiB per GPU, {_gib(stage['margin_bytes'])} left"
    )


def shown_phases(stage: dict[str, Any]) -> list[str]:
    """The phases that a stage has, in their order."""
    return [name for name in PHASES if name in stage["phases"]]


def _stage(stage: dict[str, Any]) -> RenderableType:
    head = Text(f"\n{stage['stage']}: {stage['num_ranks']} processes on {_nodes(stage['num_nodes'])}, ")
    head.append(f"{stage['num_parameters'] / 1e9:.2f} B parameters, {stage['num_trained'] / 1e6:,.1f} M trained\n")
    head.append(verdict_line(stage), style=f"bold {_VERDICTS[stage['verdict']]}")
    return Group(head, _bars(stage), _legend(), *_lines(stage))


def _bars(stage: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=False)
    scale = _BAR_WIDTH / max(stage["capacity_bytes"], stage["peak_gpu_bytes"] + stage["allowance_bytes"])
    limit = round(stage["capacity_bytes"] * scale)
    for name in shown_phases(stage):
        phase = stage["phases"][name]
        table.add_row(name, _bar(phase["kinds"], scale, limit), f"{_gib(phase['total_bytes'])} GiB")
    return table


def _bar(kinds: dict[str, int], scale: float, limit: int) -> Text:
    bar, drawn, total = Text(), 0, 0
    for kind, shade in zip(COLOURS, _SHADES, strict=True):
        total += kinds.get(kind, 0)
        width = round(total * scale) - drawn
        bar.append(shade * width, style=COLOURS[kind])
        drawn += width
    bar.append(" " * max(0, limit - drawn) + ("▏" if drawn <= limit else ""), style="dim")
    return bar


def _legend() -> Text:
    legend = Text("  ")
    for kind, shade in zip(COLOURS, _SHADES, strict=True):
        legend.append(f"{shade} ", style=COLOURS[kind]).append(f"{kind.replace('_', ' ')}  ")
    return legend


def _lines(stage: dict[str, Any]) -> Iterator[RenderableType]:
    storage, allowance = stage["storage"], stage["allowance"]
    parts = ", ".join(f"{cause} {_gib(size)}" for cause, size in allowance.items() if size)
    yield Text(f"allowance: {parts} GiB")
    yield Text(
        f"host memory per node: {_gib(storage['host_load_bytes_per_node'])} GiB to load, "
        f"{_gib(storage['host_save_bytes_per_node'])} GiB to save"
    )
    yield Text(
        f"disk: {_gib(storage['checkpoint_bytes'])} GiB per checkpoint, up to {storage['num_kept']} at a time = "
        f"{_gib(storage['kept_bytes'])} GiB; result {_gib(storage['export_bytes'])} GiB"
    )
    yield Text(_time(stage["time"]))
    if stage["savings"]:
        yield _savings(stage["savings"])
    for suggestion in stage["suggestions"]:
        text = f"→ {suggestion['change']}: {_gib(suggestion['peak_bytes'])} GiB, {_WORDS[suggestion['verdict']]}"
        yield Text(text, style=_VERDICTS[suggestion["verdict"]])
    for note in stage["notes"]:
        yield Text(note, style="dim")


def _time(time: dict[str, Any]) -> str:
    steps = "steps by the data" if time["num_steps"] is None else f"{time['num_steps']:,} steps"
    text = f"time: {time['tokens_per_step']:,} tokens per step, {steps}, {time['flops_per_step']:.3g} FLOPs per step"
    if time["step_s"] is None:
        return text
    use = time["utilisation"]
    text += f"; at {use['best']:.0%} to {use['worst']:.0%} of peak {_span(time['step_s'])} s per step"
    if time["hours"] is not None:
        text += f", {_span(time['hours'])} h, {_span(time['gpu_hours'])} GPU hours"
    return text


def _savings(savings: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1), title="what each technique saves per GPU", title_justify="left")
    for heading in ("technique", "used", "with", "without", "saves", "how"):
        table.add_column(heading)
    for row in savings:
        sizes = (f"{_gib(row[name])} GiB" for name in ("with_bytes", "without_bytes"))
        table.add_row(
            row["technique"], "yes" if row["used"] else "no", *sizes, f"{row['saves_fraction']:.0%}", row["how"]
        )
    return table


def _span(limits: dict[str, float]) -> str:
    return f"{limits['best']:,.3g} to {limits['worst']:,.3g}"


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _gib(size: int) -> str:
    gib = size / _GIB
    return f"{gib:,.1f}" if abs(gib) >= 1 else f"{gib:.2g}"

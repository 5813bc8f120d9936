"""A plan as a figure: a stacked bar per stage and phase, with the line that it must stay under."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.foundation.errors import UsageError
from lockstep.planning.picture import COLOURS, shown_phases

_GIB = 1 << 30
_FORMATS = (".svg", ".png", ".pdf")


def draw(plan: dict[str, Any], path: Path) -> None:
    """Writes a figure of a plan (as JSON data). Raises UsageError for an unknown file format."""
    if path.suffix not in _FORMATS:
        raise UsageError(f"{path}: a figure is written as {', '.join(_FORMATS)}.")
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "lockstep"  # the same plan, the same file
    import matplotlib.pyplot as plt

    stages = list(plan["stages"].values())
    widths = [len(stage["phases"]) for stage in stages]
    figure, axes = plt.subplots(
        1,
        len(stages),
        figsize=(1.5 + 0.85 * sum(widths), 4.5),
        squeeze=False,
        width_ratios=widths,
        layout="constrained",
    )
    for axis, stage in zip(axes[0], stages, strict=True):
        _bars(axis, stage)
    axes[0][0].set_ylabel("GiB per GPU")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False)
    figure.suptitle(f"{plan['name']} on {plan['hardware']}", x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)
    plt.close(figure)


def _bars(axis: Any, stage: dict[str, Any]) -> None:
    names = shown_phases(stage)
    bottom = [0.0] * len(names)
    for kind, colour in COLOURS.items():
        heights = [stage["phases"][name]["kinds"].get(kind, 0) / _GIB for name in names]
        axis.bar(names, heights, bottom=bottom, color=colour, label=str(kind).replace("_", " "))
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    axis.bar(
        names,
        [stage["allowance_bytes"] / _GIB] * len(names),
        bottom=bottom,
        color="none",
        ec="0.5",
        ls=":",
        label="allowance",
    )
    axis.axhline(stage["capacity_bytes"] / _GIB, color="black", lw=1)
    axis.annotate("memory", (0, stage["capacity_bytes"] / _GIB), va="bottom", fontsize="small")
    axis.tick_params(axis="x", rotation=45)
    axis.set_title(f"{stage['stage']}: {stage['verdict']}", fontsize="medium")
    axis.spines[["top", "right"]].set_visible(False)

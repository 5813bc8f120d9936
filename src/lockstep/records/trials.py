"""The table at the end of a sweep: what varied, and what came out."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from lockstep.foundation.errors import EXIT_OK
from lockstep.launch.sweep import Sweep, Trial

_HEADLINES = {
    "evaluate": (
        "sft.perplexity_tuned",
        "ppo.reward_gain",
        "ppo.reward_gain_ci95",
        "ppo.judge_gain",
        "ppo.kl_per_token",
        "ppo.distinct2_ratio",
    ),
    "ppo": ("objective/score", "objective/kl_per_token", "policy/entropy"),
    "sft": ("train_loss", "eval_loss", "eval_perplexity"),
}
"""Per stage, the metrics that fit on a screen; of the other stages all numbers are shown."""
_WIDE = 1000


def trial_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """One plain row per trial, in the grid's order: point, status, the last stage's run and its metrics."""
    return [_row(sweep, trial) for trial in sweep.trials]


def trial_table(sweep: Sweep) -> str:
    """The rows as text for a terminal."""
    rows = trial_rows(sweep)
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    short = [name.rpartition(".")[2] for name in names]
    shown = short if len(set(short)) == len(short) else names
    view = Table(*sweep.grid.choices, f"{sweep.until} run", *shown, box=SIMPLE)
    for row in rows:
        values = [_text(row["metrics"].get(name)) for name in names]
        view.add_row(*map(str, row["point"].values()), row["run_id"] or row["status"], *values)
    console = Console(width=_WIDE)
    with console.capture() as capture:
        console.print(view)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).rstrip()


def _row(sweep: Sweep, trial: Trial) -> dict[str, Any]:
    metrics = _flat(trial.metrics(sweep.until))
    chosen = _HEADLINES.get(sweep.until, tuple(metrics))
    done = trial.code == EXIT_OK and sweep.until in trial.runs
    return {
        "point": trial.point,
        "status": "complete" if done else f"ended with {trial.code}",
        "run_id": trial.runs[sweep.until].root.name if done else None,
        "metrics": {name: metrics[name] for name in chosen if name in metrics},
    }


def _flat(metrics: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in metrics.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return f"[{', '.join(_text(item) for item in value)}]"
    return "" if value is None else str(value)

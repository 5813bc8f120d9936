"""What every benchmark shares: variants measured in turn, so that a slow minute hits all of them; medians; a table."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Summary:
    """One variant's measurements of one quantity."""

    median: float
    low: float
    high: float
    num_samples: int
    ratio: float
    """Its median over the baseline's."""


def interleaved(
    variants: Mapping[str, Callable[[], Mapping[str, float]]], *, rounds: int, warmup: int = 1
) -> dict[str, dict[str, list[float]]]:
    """Calls every variant once per round, in turn; returns variant → quantity → its values after the warm-up."""
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in variants}
    for number in range(warmup + rounds):
        for name, measure in variants.items():
            measured = measure()
            if number >= warmup:
                for quantity, value in measured.items():
                    samples[name].setdefault(quantity, []).append(value)
    return samples


def printed_result(side: str, command: list[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Runs one side in a process of its own and returns what its line `RESULT {…}` says; exits where there is none."""
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        sys.exit(f"{side} failed:\n{done.stderr[-3000:]}")
    measured: dict[str, float] = json.loads(lines[-1].removeprefix("RESULT "))
    return measured


def summarise(samples: Mapping[str, Mapping[str, list[float]]], *, baseline: str) -> dict[str, dict[str, Summary]]:
    """quantity → variant → summary, with ratios to `baseline`."""
    return {
        quantity: {
            name: _summary(values[quantity], statistics.median(samples[baseline][quantity]))
            for name, values in samples.items()
        }
        for quantity in samples[baseline]
    }


def report(title: str, setup: Mapping[str, Any], summaries: Mapping[str, Mapping[str, Summary]]) -> None:
    """Prints a table for people, then one JSON line for programs."""
    print(f"\n{title}\n  " + ", ".join(f"{name} {value}" for name, value in setup.items()))
    print(f"  {'':<28}{'':<16}{'median':>10}{'low':>10}{'high':>10}{'n':>4}{'ratio':>9}")
    for quantity, variants in summaries.items():
        for name, s in variants.items():
            numbers = f"{s.median:>10.4g}{s.low:>10.4g}{s.high:>10.4g}{s.num_samples:>4}{s.ratio:>9.3f}"
            print(f"  {quantity:<28}{name:<16}{numbers}")
    plain = {quantity: {name: vars(s) for name, s in variants.items()} for quantity, variants in summaries.items()}
    print(json.dumps({"benchmark": title, "setup": dict(setup), "results": plain}, sort_keys=True))


def _summary(values: list[float], baseline_median: float) -> Summary:
    median = statistics.median(values)
    ratio = median / baseline_median if baseline_median else float("nan")
    return Summary(median, min(values), max(values), len(values), ratio)

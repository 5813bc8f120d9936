"""The report: everything a reader wants is on one page, which needs nothing else and reads well on any screen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from browser import browser, needs_chromium
from lockstep.foundation.files import read_json, write_json
from lockstep.runs.directory import RunDirectory
from recorded_experiment import MEASURED, record_experiment
from tracked_runs import ENVIRONMENT, read_record

_VOID = {"br", "meta", "link"}


class Outline(HTMLParser):
    """What a page is made of; fails on a tag that is not closed in its place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += " " + data


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The root of a recorded experiment, and the report that the stage's own process made of it."""
    root = tmp_path_factory.mktemp("experiment")
    experiment, results, runs = record_experiment(root)
    directory = RunDirectory(runs / "report" / "0123456789ab")
    job: dict[str, Any] = {
        "stage": "report",
        "run_id": directory.root.name,
        "params": experiment.model_dump(),
        "project": str(root),
        "inputs": {name: str(path) for name, path in results.items()},
        "input_hashes": {},
        "options": {},
    }
    write_json(directory.job_file(1), job)
    command = [sys.executable, "-m", "lockstep.stages.report", "--run-dir", str(directory.root), "--attempt", "1"]
    subprocess.run(command, env=ENVIRONMENT, check=True)
    return root, directory.outputs / "report.html"


@pytest.fixture(scope="module")
def outline(recorded: tuple[Path, Path]) -> Outline:
    return Outline(recorded[1].read_text())


def test_the_verdict_is_at_the_top(outline: Outline) -> None:
    top = re.sub(r"\s+", " ", outline.text.partition("What came out")[0] + outline.text)
    for fact in ("smollm2-135m, fine-tuned and aligned", "31.6 → 20.9", "+0.975", "+0.194", "0.144", "98 %"):
        assert fact in top
    assert MEASURED["ppo"]["distinct2_ratio"] == 0.9754


def test_samples_data_locks_attempts_and_commands_are_there(outline: Outline, recorded: tuple[Path, Path]) -> None:
    root, _ = recorded
    text = re.sub(r"\s+", " ", outline.text)
    assert "great actors & a perfect ending" in text
    assert "too short 214" in text
    assert "negative 3 012" in text
    assert "turned off in the parameters" in text
    for stage in ("prepare", "sft", "ppo", "evaluate"):
        result = read_json(root / "results" / stage / "result.json")
        assert f"./lockstep rerun {result['run_id']}" in text
        if digest := result.get("weights_sha256"):
            assert digest in text
    record = read_record(root / "runs" / "sft" / read_json(root / "results/sft/result.json")["run_id"])
    assert [attempt["reason"] for attempt in record["attempts"]] == ["stopped", "complete"]
    assert "sft 1 2026-11-30 10:10 UTC 5 min 00 s 0 → 14 stopped" in text
    assert f"git checkout {record['provenance']['git']['commit']}" in text
    assert "per_device_train_batch_size" in text


def test_only_what_the_model_learns_is_marked(recorded: tuple[Path, Path]) -> None:
    marked = re.findall(r"<mark>(.*?)</mark>", recorded[1].read_text(), re.DOTALL)
    assert marked == [
        "Pretty good! I went hiking with my sister.&lt;|im_end|&gt;",
        "Up to the lake behind the old mill &lt;3. You should come along next time.&lt;|im_end|&gt;",
    ]


def test_the_page_stands_alone_and_can_be_read_aloud(outline: Outline) -> None:
    attributes = [(tag, name, value) for tag, found in outline.tags for name, value in found.items()]
    assert not [value for _, name, value in attributes if name in ("src", "href") and not str(value).startswith("#")]
    assert not [tag for tag, _ in outline.tags if tag in ("script", "iframe", "link")]
    ids = [value for _, name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {str(value)[1:] for _, name, value in attributes if name == "href"} <= set(ids)
    assert all(found.get("aria-label") for tag, found in outline.tags if tag == "svg")
    assert [tag for tag, _ in outline.tags if tag == "h1"] == ["h1"]
    assert sum(tag == "figure" for tag, _ in outline.tags) >= 11


@needs_chromium
def test_it_fits_wide_and_narrow_screens_and_asks_the_network_for_nothing(
    recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    pictures = Path(os.environ.get("LOCKSTEP_PICTURES", tmp_path))
    with browser() as page:
        for name, width, dark in (("report", 1280, False), ("report-dark", 1280, True), ("report-narrow", 420, False)):
            page.open(recorded[1].as_uri(), width=width, height=900, dark=dark)
            assert page.requests == [recorded[1].as_uri()]
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            clipped = "[...document.querySelectorAll('.tile .value')].filter(e => e.scrollWidth > e.clientWidth).length"
            assert page.evaluate(clipped) == 0
            page.screenshot(pictures / f"{name}.png")
        light, dark_page = (contrast(page, recorded[1].as_uri(), dark) for dark in (False, True))
    assert min(light, dark_page) > 4.5


def contrast(page: Any, url: str, dark: bool) -> float:
    """The contrast of quiet text on its card, as WCAG 2 defines it."""
    page.open(url, dark=dark)
    script = "getComputedStyle(document.querySelector('{}')).{}.match(/\\d+/g).slice(0, 3).map(Number)"
    ink = page.evaluate(script.format(".tile .note", "color"))
    card = page.evaluate(script.format(".tile", "backgroundColor"))
    bright, dim = sorted((_luminance(ink), _luminance(card)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def _luminance(rgb: list[int]) -> float:
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

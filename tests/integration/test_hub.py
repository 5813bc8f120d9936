"""Data and models come from a hub through its real client: pinned, resumable, with a token that nobody sees."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_worlds import PROJECT, RECIPE, chat
from hub_server import Hub, running
from lockstep.foundation.files import read_json, sha256_file
from lockstep.params.experiment import read_yaml

pytestmark = pytest.mark.integration
COMMIT = "8049631c405ae6576f93f445c6b8166f76f5505a"
TOKEN = "hf_averysecrettoken"
CHATS = ("\n".join(json.dumps(chat(f"Question {n}?", f"Answer {n}.")) for n in range(20_000)) + "\n").encode()
MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(range(256)) * 100_000,
    "pytorch_model.bin": b"a pickle",
    "modeling_evil.py": b"import os",
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    repositories = {
        ("datasets", "team/chats", COMMIT): {"data/train-0.jsonl": CHATS, "data/test-0.jsonl": b"{}\n"},
        ("models", "team/model", COMMIT): dict(MODEL),
    }
    with running(Hub(repositories, token=TOKEN)) as served:
        yield served


def fetch(project: Path, hub: Hub, *, data: str = "team/chats", commit: str = COMMIT, token: str | None = TOKEN) -> Any:
    """`lockstep fetch`'s own process, on the tiny recipe with its chats and its model on the hub."""
    raw = read_yaml(RECIPE)
    raw["model"].update(source=f"hub:team/model@{COMMIT}", path="data/model", manifest="data/model/manifest.json")
    source = {"source": f"hub:{data}@{commit}", "files": ["data/train-*.jsonl"]}
    raw["data"]["sft"].update(path="data/chats", sources=[source])
    (project / "params.yaml").write_text(json.dumps(raw))
    if not (project / "recipes").exists():
        (project / "recipes").symlink_to(PROJECT / "recipes")
    environment = {"PATH": os.environ["PATH"], "HOME": str(project), "HF_ENDPOINT": hub.address}
    environment |= {"PYTHONPATH": str(PROJECT / "src"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment |= {"HF_TOKEN": token} if token else {}
    command = [sys.executable, "-m", "lockstep.stages.fetch", str(project)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)


def transfers(hub: Hub, file: str) -> list[str]:
    """The Range headers of the GET requests for a file."""
    return [asked for method, path, asked in hub.requests if method == "GET" and path.endswith(file)]


def test_fetching_from_a_hub(tmp_path: Path, hub: Hub):
    """One story, since each start of the client costs seconds: given up, gone on with, whole, verified, repaired."""
    hub.breaks = {"model.safetensors": [1000] * 50}
    given_up = fetch(tmp_path, hub)
    assert given_up.returncode == 1
    assert "goes on where it stopped" in given_up.stderr
    assert "Traceback" not in given_up.stderr
    assert not (tmp_path / "data" / "model").exists()

    hub.breaks = {"model.safetensors": [23_000_000]}
    hub.requests.clear()
    first = fetch(tmp_path, hub)
    assert first.returncode == 0, first.stderr
    assert transfers(hub, "config.json") == transfers(hub, "train-0.jsonl") == [], "what was whole was fetched again"
    start, resumed = transfers(hub, "model.safetensors")
    assert start == ""
    assert int(re.findall(r"\d+", resumed)[0]) > 0, "the broken transfer began anew"

    chats, model = tmp_path / "data" / "chats", tmp_path / "data" / "model"
    assert (chats / f"team--chats@{COMMIT}" / "data" / "train-0.jsonl").read_bytes() == CHATS
    assert list(read_json(chats / "manifest.json")["files"]) == [f"team--chats@{COMMIT}/data/train-0.jsonl"]
    names = ["config.json", "manifest.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in model.iterdir()) == names
    manifest = read_json(model / "manifest.json")
    assert manifest["source"] == f"hub:team/model@{COMMIT}"
    assert manifest["files"]["model.safetensors"]["sha256"] == sha256_file(model / "model.safetensors")
    assert (model / "model.safetensors").read_bytes() == MODEL["model.safetensors"]

    hub.requests.clear()
    again = fetch(tmp_path, hub)
    assert "is here and verified" in json.loads(again.stdout)["data/model"]
    assert hub.requests == []

    (model / "tokenizer.json").write_text("damaged")
    repaired = fetch(tmp_path, hub)
    assert json.loads(repaired.stdout)["data/model"].endswith("fetched")
    assert (model / "tokenizer.json").read_bytes() == MODEL["tokenizer.json"]
    everything = [given_up, first, again, repaired]
    assert not any(TOKEN in done.stdout + done.stderr for done in everything)
    assert not any(TOKEN in path.read_text(errors="ignore") for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"commit": "0" * 40}, "The hub has no dataset"),
        ({"token": None}, "HF_TOKEN may not read it"),
    ],
)
def test_what_the_hub_does_not_give_is_said_in_a_line(tmp_path: Path, hub: Hub, changes: dict[str, Any], said: str):
    done = fetch(tmp_path, hub, **changes)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data" / "chats").exists()

"""Real runs with one thing changed each: `lockstep compare` gives the right verdict, step and first suspect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.clones import Clone
from lockstep.foundation.files import sha256_file
from tiny_clone import prepared_clone, set_parameters

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
TRAINER_LINE = ("max_grad_norm=sft.max_grad_norm,", "max_grad_norm=sft.max_grad_norm / 4,")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return prepared_clone(tmp_path_factory.mktemp("culprits"), sft={"max_steps": 6})


@pytest.fixture(scope="module")
def original(clone: Clone) -> str:
    return trained(clone)


def trained(clone: Clone, *words: str, **environment: str) -> str:
    """Runs sft and returns the path of its record."""
    clone.run("./lockstep", "run", "sft", *words, **environment)
    runs = Path(environment.get("LOCKSTEP_RUNS", clone.path / "runs"))
    return str(runs / "sft" / clone.result("sft")["run_id"] / "run.json")


def compared(clone: Clone, left: str, right: str) -> dict[str, Any]:
    """What `lockstep compare` says, with the first suspect as (kind, name)."""
    done = clone.run("./lockstep", "compare", left, right, "--json", check=False)
    found = json.loads(done.stdout)
    suspects = [(difference["kind"], difference["name"]) for difference in found["differences"]]
    steps = {parting["metric"]: parting["first_step"] for parting in found["partings"]}
    return {"code": done.returncode, "verdict": found["verdict"], "suspect": suspects[0], "first_step": steps["loss"]}


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, path
    path.write_text(text.replace(old, new))


def test_another_seed(clone: Clone, original: str) -> None:
    replaced(clone.path / "params.yaml", "seed: 42", "seed: 43")
    found = compared(clone, original, trained(clone))
    replaced(clone.path / "params.yaml", "seed: 43", "seed: 42")
    assert found == {"code": 11, "verdict": "different", "suspect": ("parameter", "seed"), "first_step": 1}


def test_one_line_of_the_trainer(clone: Clone, original: str) -> None:
    arguments = clone.path / "src" / "lockstep" / "training" / "sft" / "arguments.py"
    replaced(arguments, *TRAINER_LINE)
    found = compared(clone, original, trained(clone))
    replaced(arguments, *reversed(TRAINER_LINE))
    assert found["suspect"] == ("code", "training/sft/arguments.py")
    assert found["verdict"] != "identical"
    # The first step has a learning rate of zero, the second still sees the untouched weights.
    assert found["first_step"] == 3


def test_one_row_less(clone: Clone, original: str) -> None:
    chats = clone.path / "recipes" / "tiny" / "sft" / "chats.jsonl"
    text = chats.read_text()
    chats.write_text(text[text.index("\n") + 1 :])
    clone.run("./lockstep", "run", "prepare")
    found = compared(clone, original, trained(clone))
    chats.write_text(text)
    clone.run("./lockstep", "run", "prepare")
    assert found["suspect"] == ("input", "tokens")
    assert (found["verdict"], found["first_step"]) == ("different", 1)


def test_a_flipped_byte_in_the_weights(clone: Clone, original: str) -> None:
    weights = clone.path / "data" / "tiny" / "model" / "model.safetensors"
    manifest = clone.path / "data" / "tiny" / "model" / "manifest.json"
    kept, known = weights.read_bytes(), manifest.read_text()
    flipped = bytearray(kept)
    flipped[-2] ^= 0x01
    weights.write_bytes(flipped)
    refused = clone.run("./lockstep", "run", "sft", check=False)
    assert refused.returncode == 93
    assert "model.safetensors" in refused.stderr
    facts = json.loads(known)
    facts["files"]["model.safetensors"]["sha256"] = sha256_file(weights)
    manifest.write_text(json.dumps(facts))
    found = compared(clone, original, trained(clone))
    weights.write_bytes(kept)
    manifest.write_text(known)
    assert found["suspect"] == ("input", "model")
    assert found["verdict"] != "identical"


def test_another_number_of_ranks_is_within_tolerance(clone: Clone, original: str, tmp_path: Path) -> None:
    found = compared(clone, original, trained(clone, "--elastic", "1", LOCKSTEP_RUNS=str(tmp_path / "runs")))
    assert (found["code"], found["verdict"]) == (10, "within tolerance")
    assert found["suspect"] == ("processes", "processes × threads")


def test_rerun_of_a_run_json_is_identical(clone: Clone, original: str) -> None:
    set_parameters(clone, sft={"max_steps": 7})
    again = clone.run("./lockstep", "rerun", original, "--json", check=False)
    assert again.returncode == 0
    part = clone.run("./lockstep", "rerun", original, "--until-step", "3", "--json", check=False)
    found = json.loads(part.stdout[part.stdout.index("\n{") :])
    assert (part.returncode, found["verdict"]) == (0, "identical")
    assert {parting["num_steps"] for parting in found["partings"]} == {3}

"""`prepare` from the outside: what it leaves for the other stages, and what it says about bad input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_worlds import chat, experiment_with, prepare_job, write_jsonl
from lockstep.data.store import TokenStore, read_preferences, read_prompts, read_reviews
from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.foundation.files import read_json, sha256_tree
from lockstep.stages.prepare import run
from namespaces import mount_namespace

pytestmark = pytest.mark.integration
TESTS = Path(__file__).parents[1]
GOOD = [chat(f"How was film {n}?", f"Film {n} was great.") for n in range(60)]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = prepare_job(tmp_path_factory.mktemp("prepare") / "run", experiment_with())
    run(job)
    return job.directory.outputs


def test_two_folders_get_the_same_bytes(outputs: Path, tmp_path: Path):
    job = prepare_job(tmp_path / "somewhere else" / "run", experiment_with())
    run(job)
    assert sha256_tree(job.directory.outputs) == sha256_tree(outputs)
    assert [path.name for path in job.directory.root.iterdir() if path.name.startswith(".")] == []
    assert not (job.directory.scratch / "prepare").exists()


def test_everything_promised_is_there_and_apart(outputs: Path):
    train, held_out = (TokenStore.open(outputs / "sft" / split) for split in ("train", "eval"))
    assert len(train) > len(held_out) > 0
    rows = {tuple(store.row(n)["input_ids"].tolist()) for store in (train, held_out) for n in range(len(store))}
    assert len(rows) == len(train) + len(held_out)
    for read, name in ((read_prompts, "prompts"), (read_preferences, "preferences"), (read_reviews, "reviews")):
        ids = [[record.id for record in read(outputs / name / f"{split}.jsonl")] for split in ("train", "eval")]
        assert len(ids[0]) > len(ids[1]) > 0
        assert len({*ids[0], *ids[1]}) == len(ids[0]) + len(ids[1])
    assert {review.label for review in read_reviews(outputs / "reviews" / "eval.jsonl")} == {0, 1}
    assert all(pair.chosen != pair.rejected for pair in read_preferences(outputs / "preferences" / "train.jsonl"))


def test_the_metrics_account_for_every_text(outputs: Path):
    metrics = read_json(outputs / "metrics.json")
    for section in metrics["counts"].values():
        for source in section.values():
            kept = sum(count for labels in source["kept"].values() for count in labels.values())
            assert source["read"] == kept + sum(source["dropped"].values())
    manifest = read_json(outputs / "sft" / "train" / "manifest.json")
    assert metrics["tokens"]["train"]["num_tokens"] == manifest["num_tokens"]
    assert 0.8 < metrics["tokens"]["train"]["fill"] <= 1


def test_samples_show_what_the_model_learns(outputs: Path):
    shown = read_json(outputs / "samples.json")
    for sample in shown["sft"]:
        learnt = "".join(piece["text"] for piece in sample["segments"] if piece["supervised"])
        assert learnt.endswith("<|im_end|>")
        assert "<|im_start|>" not in learnt
    assert len(shown["prompts"]) == len(shown["reviews"]) == 4


def test_the_result_names_no_time_and_no_place(outputs: Path):
    result = read_json(outputs / "result.json")
    assert set(result) == {"stage", "run_id", "inputs", "outputs"}
    for path in outputs.rglob("*.json*"):
        assert str(outputs.parents[1]) not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("lines", "changes", "said"),
    [
        ([*GOOD, {"messages": [{"role": "user", "content": "Hi"}]}], {}, "chats.jsonl:61: a chat without an assistant"),
        ([*GOOD, {"messages": "Hi"}], {}, "chats.jsonl:61: expected a list of messages"),
        (GOOD[:2], {"eval_fraction": 0.001}, "data.sft: the eval split is empty. Of 2 texts read, 2 are for training"),
        (GOOD, {"filters": {"min_chars": 5000}}, "60 too_short (first: chats.jsonl:1)"),
        (GOOD, {"max_length": 8, "overflow": "truncate"}, "60 no_supervised_token (first: chats.jsonl:"),
        (GOOD, {"max_length": 8}, "60 too_long (first: chats.jsonl:"),
        (GOOD, {"chat_template_path": "absent.jinja"}, "absent.jinja is not here"),
        (None, {}, "chats.jsonl is not here"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(
    tmp_path: Path, lines: list[dict[str, Any]] | None, changes: dict[str, Any], said: str
):
    folder = tmp_path / "chats"
    folder.mkdir()
    if lines is not None:
        write_jsonl(folder / "chats.jsonl", lines)
    job = prepare_job(tmp_path / "run", experiment_with(sft=changes), {"sft": folder})
    with pytest.raises(UsageError) as caught:
        run(job)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) < 12
    assert [path for path in job.directory.root.rglob("*") if path.is_file()] == []


def test_a_model_folder_without_a_tokenizer_is_refused(tmp_path: Path):
    job = prepare_job(tmp_path / "run", experiment_with())
    shutil.rmtree(job.inputs["model"])
    with pytest.raises(LockstepError, match="lockstep fetch"):
        run(job)


def test_an_earlier_result_survives_a_failed_run(tmp_path: Path):
    folder = tmp_path / "chats"
    write_jsonl(folder / "chats.jsonl", GOOD)
    job = prepare_job(tmp_path / "run", experiment_with(), {"sft": folder})
    run(job)
    before = sha256_tree(job.directory.outputs)
    (folder / "chats.jsonl").write_text("{")
    with pytest.raises(UsageError):
        run(job)
    assert sha256_tree(job.directory.outputs) == before


def _python(script: str, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    environment = {**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"}
    command = [*prefix, sys.executable, str(TESTS / script), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _answer(process: subprocess.Popen[str]) -> Any:
    with process:
        try:
            out, err = process.communicate(timeout=280)
        finally:
            process.kill()
    assert process.returncode == 0, err
    return json.loads(out)


def test_a_full_disk_is_explained_and_left_clean(tmp_path: Path):
    script = "prepare_on_a_full_disk.py"
    no_room_to_sort, no_room_to_write, enough = _answer(_python(script, str(tmp_path), prefix=tuple(mount_namespace())))
    for failed in (no_room_to_sort, no_room_to_write):
        assert failed["said"].startswith("The disk is full")
        assert "Free some space and repeat the command" in failed["said"]
        assert failed["left"] == []
    assert enough["said"] == "nothing"
    assert "run/outputs/sft/train/rows.arrow" in enough["left"]


def test_memory_does_not_grow_with_the_number_of_texts(tmp_path: Path):
    """Four times the texts, nearly the same memory; held as objects, the 12,000 more would take some 60 MB."""
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()
    started = [_python("made_up_lines.py", str(tmp_path / name), n) for name, n in (("few", "4000"), ("many", "16000"))]
    few, many = (_answer(process) for process in started)
    assert few["num_samples"] == 4000
    assert many["num_samples"] == 16000
    assert many["grown_mb"] - few["grown_mb"] < 30

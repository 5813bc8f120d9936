"""The model card says what the hub reads and what a person asks, and nothing that was not recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from lockstep.foundation.files import read_json, write_json
from lockstep.reporting.card import Exported, model_card
from lockstep.runs.directory import RunDirectory
from recorded_experiment import MEASURED, record_experiment

COMMIT = "0123456789" * 4
SHA = "ab" * 32


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, RunDirectory]:
    """A recorded experiment whose runs name the runs that made their inputs, by stage."""
    experiment, results, root = record_experiment(tmp_path)
    found = {s: read_json(results[s] / "result.json").get("run_id") for s in ("prepare", "sft", "ppo", "evaluate")}
    made_by = {"tokens": found["prepare"], "prompts": found["prepare"], "sft": found["sft"], "ppo": found["ppo"]}
    directories = {stage: RunDirectory(root / stage / run_id) for stage, run_id in found.items()}
    for directory in directories.values():
        record = read_json(directory.run_json)
        known = {name: made_by[name] for name in record["locks"]["inputs"] if name in made_by}
        record |= {"params": experiment.model_dump(), "made_by": known if record["stage"] != "prepare" else {}}
        write_json(directory.run_json, record)
    return directories


def test_the_hub_reads_the_front_matter(runs: dict[str, RunDirectory]) -> None:
    record = read_json(runs["ppo"].run_json)
    record["params"]["model"]["source"] = f"hub:EleutherAI/gpt-neox-20b@{COMMIT}"
    record["params"]["data"]["prompts"]["sources"] = [
        {"source": f"hub:stanfordnlp/imdb@{COMMIT}", "files": ["plain_text/train-*.parquet"]}
    ]
    write_json(runs["ppo"].run_json, record)
    base = {"source": "hub:EleutherAI/gpt-neox-20b", "licence": "Apache-2.0"}
    data = ModelCard(model_card(runs["ppo"], Exported("adapter", SHA, base=base))).data
    assert (data.base_model, data.library_name, data.license) == ("EleutherAI/gpt-neox-20b", "peft", "apache-2.0")
    assert data.datasets == ["stanfordnlp/imdb"]
    assert {"lockstep", "ppo", "lora"} <= set(data.tags)
    measured = {result.metric_type: result.metric_value for result in data.eval_results}
    assert measured["reward"] == MEASURED["ppo"]["reward_policy"]
    assert measured["kl"] == MEASURED["ppo"]["kl_per_token"]


def test_what_is_not_known_is_not_said(runs: dict[str, RunDirectory]) -> None:
    card = ModelCard(model_card(runs["sft"], Exported("model", SHA, base={"licence": "as its owner states it"})))
    assert card.data.license is None
    assert card.data.base_model is None
    assert card.data.datasets is None
    assert "Licence of the base model: as its owner states it." in card.text


def test_a_person_finds_use_lineage_parameters_attempts_and_commands(runs: dict[str, RunDirectory]) -> None:
    text = model_card(runs["sft"], Exported("model", SHA))
    record = read_json(runs["sft"].run_json)
    assert f"sha256 over all its weights: `{SHA}`" in text
    assert "AutoModelForCausalLM.from_pretrained" in text
    assert f"| perplexity of held-out chats | {MEASURED['sft']['perplexity_base']} |" in text
    for digest in (*record["locks"]["inputs"].values(), record["locks"]["code"]):
        assert digest in text
    assert f"**prepare** run `{runs['prepare'].root.name}`" in text
    assert "**ppo**" not in text
    assert "| `sft.learning_rate` | `0.0001` |" in text
    assert "| sft | 1 | 2026-11-30 10:10 UTC | 5\u202fmin 00\u202fs | 0 → 14 | stopped |" in text
    assert "2.0\u202fGiB per GPU, planned 3.0\u202fGiB" in text
    assert f"git checkout {record['provenance']['git']['commit']}" in text
    assert f"./lockstep rerun {runs['sft'].root.name}" in text
    assert "./lockstep export sft FOLDER\n" in text


def test_the_last_checkpoint_is_the_result_where_its_weights_are(runs: dict[str, RunDirectory]) -> None:
    digest = read_json(runs["sft"].run_json)["result"]["weights_sha256"]
    assert "## Evaluation" in model_card(runs["sft"], Exported("model", digest, step=20))


def test_no_path_of_a_machine_is_told(runs: dict[str, RunDirectory]) -> None:
    record = read_json(runs["sft"].run_json)
    for remote, told in (("/home/someone/checkout", False), ("https://git.example.org/lab/kit", True)):
        record["provenance"]["git"]["remote"] = remote
        write_json(runs["sft"].run_json, record)
        assert (remote in model_card(runs["sft"], Exported("model", SHA))) is told


def test_samples_of_the_policy_are_shown_beside_the_reference_s(runs: dict[str, RunDirectory]) -> None:
    text = model_card(runs["ppo"], Exported("adapter", SHA))
    assert "| The plot of this film follows | two brothers who never talk. It is slow and (reward −0.21) |" in text
    assert "PeftModel.from_pretrained" in text
    assert "value_head.safetensors" in text


def test_an_earlier_checkpoint_is_not_credited_with_what_the_result_reached(runs: dict[str, RunDirectory]) -> None:
    text = model_card(runs["sft"], Exported("model", SHA, step=12))
    assert "checkpoint after step 12 of 20" in text
    assert "## Evaluation" not in text
    assert read_json(runs["sft"].run_json)["result"]["weights_sha256"] not in text
    assert ModelCard(text).data.eval_results is None
    assert "./lockstep run sft --until-step 12" in text
    assert "./lockstep export sft FOLDER --step 12" in text

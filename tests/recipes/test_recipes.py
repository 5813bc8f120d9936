"""Every shipped recipe: it loads, it can be planned, and, shrunk to a few narrow layers, it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

import recipe_cases
from lockstep.params.experiment import Experiment, load_experiment
from lockstep.planning.hardware import Asked, hardware_for
from lockstep.planning.plan import Subject, plan_experiment, plan_stage, read_config
from recipe_cases import PROJECT, big_recipes, shrunk

pytestmark = pytest.mark.integration
GIB = 1 << 30
RECIPES = sorted(path.stem for path in (PROJECT / "recipes").glob("*.yaml"))


def loaded(name: str) -> Experiment:
    """The recipe as it is shipped."""
    return load_experiment(PROJECT / "recipes" / f"{name}.yaml")


def subject(experiment: Experiment) -> Subject:
    """The recipe on the hardware that it states."""
    return Subject(experiment, read_config(experiment, PROJECT), hardware_for(experiment, Asked()))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_where_it_comes_from_and_pins_what_it_fetches(name: str) -> None:
    text = (PROJECT / "recipes" / f"{name}.yaml").read_text()
    assert text.startswith("# ")
    experiment = loaded(name)
    if experiment.model.source.startswith("hub:"):
        assert experiment.model.architecture is not None
        assert (PROJECT / experiment.model.architecture).is_file()
        assert experiment.run.hardware is not None


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("llama-2-70b", 68_976_648_192),
        ("llama-3.1-8b", 8_030_261_248),
        ("gpt-neox-20b", 20_554_567_680),
        ("qwen2.5-7b", 7_615_616_512),
        ("mistral-7b", 7_241_732_096),
    ],
)
def test_an_architecture_has_as_many_parameters_as_the_published_model(name: str, num_parameters: int) -> None:
    """Published counts; Llama-2-70B's files hold 5,120 numbers more, the rotary frequencies of its 80 layers."""
    import torch

    from lockstep.models.sharding import build_model

    facts = json.loads((PROJECT / "recipes" / "architectures" / f"{name}.json").read_text())
    with torch.device("meta"):
        model = build_model(AutoConfig.for_model(**facts), torch.float32)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


def test_llama_70b_fits_two_nodes_as_was_measured() -> None:
    """72.2 GiB was measured with the same sharding code and torch's own tracker over all 80 layers."""
    plan = plan_experiment("llama2-70b-fsdp-2x8x80g", subject(loaded("llama2-70b-fsdp-2x8x80g"))).as_json()
    assert plan["peak_gpu_bytes"] == pytest.approx(72.2 * GIB, rel=0.03)
    assert plan["verdict"] == "fits"
    kinds = plan["phases"]["backward"]["kinds"]
    assert kinds["parameters"] == pytest.approx(16.06 * GIB, rel=0.01)
    assert kinds["optimizer"] == pytest.approx(32.12 * GIB, rel=0.01)
    assert plan["checkpoint_bytes"] == pytest.approx(12 * 68_976_648_192, rel=0.001)


def test_llama_70b_without_checkpointing_does_not_fit_and_the_plan_says_what_helps() -> None:
    from lockstep.planning.changes import with_suggestions

    experiment = loaded("llama2-70b-fsdp-2x8x80g")
    sft = experiment.sft.model_copy(update={"activation_checkpointing": False})
    asked = subject(experiment.model_copy(update={"sft": sft}))
    plan = with_suggestions(plan_stage("sft", asked), asked)
    assert plan.verdict == "no"
    assert plan.suggestions[0].change == "sft.activation_checkpointing: true"
    assert plan.suggestions[0].verdict == "fits"


@pytest.mark.parametrize("name", ["gpt-neox-20b-ppo-24g", "gpt-neox-20b-ppo-24g-nf4"])
def test_neox_20b_fits_24_gb(name: str) -> None:
    plan = plan_experiment(name, subject(loaded(name))).as_json()
    assert plan["verdict"] == "fits"
    assert plan["margin_bytes"] > 0.03 * plan["capacity_bytes"]
    assert {"rollout", "scoring", "update", "forward", "backward"} <= plan["phases"].keys()


def test_neox_20b_in_int8_with_4_rows_of_1024_tokens_is_refused() -> None:
    """24.7 GiB of tensors by an earlier measurement, on a card of 24."""
    experiment = loaded("gpt-neox-20b-ppo-24g")
    data = experiment.data.model_copy(update={"sft": experiment.data.sft.model_copy(update={"max_length": 1024})})
    sft = experiment.sft.model_copy(update={"per_device_train_batch_size": 4})
    plan = plan_stage("sft", subject(experiment.model_copy(update={"data": data, "sft": sft})))
    assert plan.verdict == "no"


@pytest.mark.parametrize("name", big_recipes())
def test_a_shrunk_recipe_can_be_planned(name: str) -> None:
    experiment, architecture = shrunk(name)
    config = AutoConfig.for_model(**architecture)
    config._attn_implementation, config.use_cache = "sdpa", False
    plan = plan_experiment(name, replace(subject(loaded(name)), experiment=experiment, config=config)).as_json()
    assert plan["verdict"] == "fits"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What running every shrunk recipe found; those for one process share a launch, and so do the others."""
    folder = tmp_path_factory.mktemp("recipes")
    script = Path(recipe_cases.__file__)
    alone = [name for name in big_recipes() if shrunk(name)[0].sft.num_processes == 1]
    together = [name for name in big_recipes() if name not in alone]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for launcher, names in (([], alone), (torchrun, together)):
        paths = os.pathsep.join([str(script.parent), str(PROJECT / "src")])
        done = subprocess.run(
            [sys.executable, *launcher, str(script), str(folder), *names],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in big_recipes()}


@pytest.mark.parametrize("name", big_recipes())
def test_a_shrunk_recipe_runs(found: dict[str, Any], name: str) -> None:
    experiment = shrunk(name)[0]
    assert len(found[name]["loss"]) == experiment.sft.max_steps
    assert all(norm > 0 for norm in found[name]["grad_norm"])
    if experiment.sft.peft is not None:
        assert found[name]["adapters_that_moved"] == 1
    if experiment.ppo.enabled:
        ppo = found[name]["ppo"]
        assert ppo["moved"] == ppo["num"]
        assert abs(ppo["kl"]) < 0.1

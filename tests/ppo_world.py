"""What two ranks do for tests/integration/test_ppo.py, all in one launch."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from datasets import Dataset

from lockstep.checkpoints.store import CheckpointStore
from lockstep.data.order import EpochOrder
from lockstep.foundation.errors import DoNotRetryError, StoppedAfterSave
from lockstep.models.adapters import add_lora
from lockstep.models.weights import weights_sha256
from lockstep.params.model import LoraParams
from lockstep.params.reward import RewardParams
from lockstep.params.run import RunParams
from lockstep.training.common.batches import BatchShape, StepSampler
from lockstep.training.common.ranks import Ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.ppo.engine import PpoEngine
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.reward_trainer import PairTrainer, RewardSession, reward_arguments
from lockstep.training.ppo.state import trained_parameters
from lockstep.training.ppo.trainer import PpoTrainer, Session
from ppo_cases import tiny_engine, tiny_model, tiny_params, tiny_tokenizer

ONE_UPDATE = {"num_processes": 2, "num_mini_batches": 1, "num_ppo_epochs": 1, "per_device_train_batch_size": 2,
              "per_device_rollout_batch_size": 4, "value": {"adapter": True}}  # fmt: skip
"""One gradient of one whole batch, so that a single process can compute the same one."""
SAME_ON_ANY_RANKS: dict[str, Any] = {"disable_dropout": True, "lora": {"r": 4, "lora_alpha": 8}, "learning_rate": 1e-3}
"""Without dropout, of which each rank draws its own."""


def all_cases(rank: int, folder: Path) -> dict[str, Any]:
    """Each case with folders of its own."""
    return {
        "one_update": one_update(),
        "gradients_are_summed": gradients_are_summed(rank),
        "resume": resume(rank, folder),
        "stop": stop_in_a_rollout(rank, folder),
        "elastic": elastic(rank, folder),
        "reward": reward_model(rank, 2, folder / "reward"),
        "reward_to_one": reward_model(rank, 2, folder / "reward-to-one", until_step=2),
        "reward_to_two": reward_model(rank, 2, folder / "reward-to-two", elastic=True),
    }


def one_update() -> dict[str, Any]:
    """A step on two ranks: what each drew, and the gradient norms of the whole batch."""
    engine = tiny_engine(tiny_params(**ONE_UPDATE), replicas=Replicas.current())
    result = engine.step()
    return {"texts": result.experience.texts, "metrics": result.metrics, "weights": digest(engine)}


def gradients_are_summed(rank: int) -> dict[str, Any]:
    """The explicit reduction, on parameters of which one rank has no gradient."""
    full, half = torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(4))
    full.grad = torch.full((2, 3), float(rank + 1))
    if rank == 1:
        half.grad = torch.ones(4)
    Replicas.current().sum_gradients([full, half])
    assert full.grad is not None
    assert half.grad is not None
    return {"full": full.grad.tolist(), "half": half.grad.tolist()}


def resume(rank: int, folder: Path) -> dict[str, Any]:
    """Four steps at once, and two, a stop, and two more."""
    whole = trainer(rank, folder / "whole")
    whole.train()
    first = trainer(rank, folder / "parts", until_step=2)
    try:
        first.train()
    except StoppedAfterSave as stopped:
        message = str(stopped)
    second = trainer(rank, folder / "parts")
    second.train()
    return {"whole": digest(whole.engine), "stopped": digest(first.engine), "resumed": digest(second.engine),
            "message": message}  # fmt: skip


def stop_in_a_rollout(rank: int, folder: Path) -> dict[str, Any]:
    """The stop file appears while the prompts of the third step are taken."""
    stopped = trainer(rank, folder / "stopped")
    at = stopped.engine.prompts.at

    def watched(cursor: int) -> list[int]:
        if rank == 0 and cursor >= 16:
            (folder / "stopped" / "control" / "stop.1").touch()
        return at(cursor)

    stopped.engine.prompts.at = watched  # type: ignore[method-assign]
    try:
        stopped.train()
    except StoppedAfterSave as reason:
        message = str(reason)
    (folder / "stopped" / "control" / "stop.1").unlink(missing_ok=True)
    dist.barrier()
    again = trainer(rank, folder / "stopped")
    again.train()
    return {"message": message, "resumed": digest(again.engine)}


def elastic(rank: int, folder: Path) -> dict[str, Any]:
    """Four steps on two ranks; the first two of them for one rank to go on from; the last two of one's run."""
    refused = trainer(rank, folder / "to-two", elastic=False, **SAME_ON_ANY_RANKS)
    try:
        refused.train()
    except DoNotRetryError as error:
        message = str(error)
    return {
        "whole": elastic_part(rank, 2, folder / "elastic-whole"),
        "to_one": elastic_part(rank, 2, folder / "to-one", until_step=2),
        "to_two": elastic_part(rank, 2, folder / "to-two"),
        "refused": message,
    }


def elastic_part(rank: int, world_size: int, folder: Path, *, until_step: int | None = None) -> dict[int, Any]:
    """Metrics by step of one attempt on `world_size` ranks, without dropout (each rank has its own)."""
    metrics: dict[int, Any] = {}
    part = trainer(
        rank,
        folder,
        world_size=world_size,
        until_step=until_step,
        elastic=True,
        log_metrics=metrics.__setitem__,
        **SAME_ON_ANY_RANKS,
    )
    with suppress(StoppedAfterSave):
        part.train()
    return metrics


def reward_model(
    rank: int, world_size: int, folder: Path, *, until_step: int | None = None, elastic: bool = False
) -> dict[str, Any]:
    """Three steps on four pairs each, shared out over the ranks: DDP for the adapter, our own sum for the head."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    if world_size > 1:  # the group is there already; Accelerate looks for it only if these are set
        unused = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        os.environ.update(unused, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    params = RewardParams(max_steps=3, per_device_train_batch_size=2, learning_rate=1e-2, warmup_steps=0)
    shape = BatchShape.of_global_size(4, rank=rank, world_size=world_size, per_device=2)
    control = None if world_size == 1 else dist.group.WORLD
    ranks = Ranks(rank, world_size, rank, torch.device("cpu"), control)  # type: ignore[arg-type]
    (folder / "control").mkdir(parents=True, exist_ok=True)
    store = CheckpointStore(folder / "checkpoints", run_id="r")
    session = RewardSession(
        ranks=ranks,
        store=store,
        stop=StopFlag(folder / "control", 1),
        run=RunParams(save_steps=10, logging_steps=100),
        seed=0,
        log_metrics=lambda step, values: None,
        found=store.newest(),
        elastic=elastic,
        until_step=until_step,
    )
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(3, 256, (8, 2, 6), generator=generator).tolist()
    pairs = Dataset.from_dict({"chosen_ids": [t[0] for t in texts], "rejected_ids": [t[1] for t in texts]})
    made = PairTrainer(
        add_lora(tiny_model(), LoraParams(r=4, lora_alpha=8), seed=0, adapter_name="reward"),
        reward_arguments(
            params,
            seed=0,
            max_steps=3,
            num_accumulation_steps=shape.num_accumulation_steps,
            device=ranks.device,
            folder=folder,
        ),
        tokenizer=tiny_tokenizer(),
        pairs=pairs,
        sampler=StepSampler(EpochOrder(8, 0), shape, start_step=session.start_step, max_steps=3),
        session=session,
    )
    made.train()
    adapter = {name: p.detach().clone() for name, p in made.model.named_parameters() if p.requires_grad}
    return {"head": made.head.weight.detach().clone(), "adapter": adapter}


def trainer(
    rank: int,
    folder: Path,
    *,
    world_size: int = 2,
    until_step: int | None = None,
    elastic: bool = False,
    log_metrics: Callable[[int, dict[str, float]], None] = lambda step, values: None,
    **changes: Any,
) -> PpoTrainer:
    """Four steps with lora dropout, a critic of its own and scaled rewards: everything that a checkpoint must hold."""
    values: dict[str, Any] = {
        "max_steps": 4, "num_processes": 2, "per_device_rollout_batch_size": 4, "per_device_train_batch_size": 2,
        "disable_dropout": False, "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.2}, "value": {"adapter": True},
        "scale_rewards": True, "kl_target": 0.1, "kl_horizon": 50, "lr_scheduler_type": "cosine",
    }  # fmt: skip
    params = tiny_params(**values | changes)
    (folder / "control").mkdir(parents=True, exist_ok=True)
    store = CheckpointStore(folder / "checkpoints", run_id="r")
    session = Session(
        ranks=Ranks(rank, world_size, rank, torch.device("cpu"), None if world_size == 1 else dist.group.WORLD),  # type: ignore[arg-type]
        store=store,
        stop=StopFlag(folder / "control", 1),
        run=RunParams(save_steps=10, logging_steps=100, sample_steps=2),
        seed=5,
        log_metrics=log_metrics,
        samples_file=folder / "samples.jsonl",
        found=store.newest(),
        elastic=elastic,
        until_step=until_step,
    )
    return PpoTrainer(tiny_engine(params, seed=5, replicas=Replicas.current()), session)


def digest(engine: PpoEngine) -> str:
    """The bits of everything trained."""
    parameters = trained_parameters(engine.backbone, engine.value_head)
    return weights_sha256((name, parameter.detach()) for name, parameter in parameters.items())

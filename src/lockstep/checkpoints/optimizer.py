"""Optimizer state by parameter name: tensors for the shards, numbers for the manifest. Our own walk.

torch's state-dict helpers raise on quantised modules and take a training step to allocate what they load into; this
walk touches no module, steps nothing, and leaves every parameter as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from lockstep.checkpoints.manifest import TensorEntry
from lockstep.checkpoints.pieces import dtype_from_name
from lockstep.foundation.errors import LockstepError

PREFIX = "optim/"


class OptimizerState:
    """An optimizer's state under the names of its parameters.

    For optimizers whose state, per parameter, is tensors of the parameter's shape (Adam's moments), tensors that are
    the same on all ranks, and numbers (the step). Parameters may be plain tensors or DTensors.
    """

    def __init__(self, optimizer: Optimizer, named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        """`named_parameters` must name every parameter of the optimizer; others are ignored. Raises LockstepError."""
        names = {id(parameter): name for name, parameter in named_parameters}
        self._optimizer = optimizer
        self._parameters: dict[str, Tensor] = {}
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if id(parameter) not in names:
                raise LockstepError(
                    f"the optimizer has a parameter of shape {tuple(parameter.shape)} that the model does not name; "
                    "a sharded model must be resharded after a forward without a backward"
                )
            self._parameters[names[id(parameter)]] = parameter
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}

    def tensors(self) -> dict[str, Tensor]:
        """`optim/<parameter>/<key>` → the live state tensors; numbers and 0-d tensors are among the facts."""
        return {
            f"{PREFIX}{name}/{key}": value
            for name, state in self._states()
            for key, value in state.items()
            if isinstance(value, Tensor) and value.dim() > 0
        }

    def facts(self) -> dict[str, Any]:
        """Hyper-parameters per group and numbers per parameter, as JSON. Reading them waits for the device."""
        groups = [self._group_facts(group) for group in self._optimizer.param_groups]
        numbers = {name: _numbers(state) for name, state in self._states()}
        return {"groups": groups, "numbers": numbers}

    def allocate(self, holds: Mapping[str, TensorEntry], facts: Mapping[str, Any]) -> dict[str, Tensor]:
        """Makes state for what a checkpoint holds (its manifest's `holds`) and sets its numbers and groups.

        Returns the tensors to load into, as `tensors` does. The parameters don't change; state that the optimizer had
        is dropped. Raises LockstepError where names or groups don't fit.
        """
        self._restore_groups(facts["groups"])
        self._optimizer.state.clear()
        for name, numbers in facts["numbers"].items():
            parameter = self._parameter(name)
            self._optimizer.state[parameter].update(self._number_state(parameter, numbers))
        for key in (key for key in holds if key.startswith(PREFIX)):
            name, slot = key.removeprefix(PREFIX).rsplit("/", 1)
            parameter = self._parameter(name)
            self._optimizer.state[parameter][slot] = _empty(parameter, holds[key])
        return self.tensors()

    def _states(self) -> Iterable[tuple[str, dict[str, Any]]]:
        for name, parameter in self._parameters.items():
            if parameter in self._optimizer.state:
                yield name, self._optimizer.state[parameter]

    def _parameter(self, name: str) -> Tensor:
        if name not in self._parameters:
            raise LockstepError(f"the checkpoint has optimizer state of '{name}', which this run does not train")
        return self._parameters[name]

    def _group_facts(self, group: dict[str, Any]) -> dict[str, Any]:
        options = {key: _plain(key, value) for key, value in group.items() if key != "params"}
        return {"params": [self._names[id(parameter)] for parameter in group["params"]], "options": options}

    def _restore_groups(self, saved: list[dict[str, Any]]) -> None:
        current = [self._group_facts(group) for group in self._optimizer.param_groups]
        if [group["params"] for group in saved] != [group["params"] for group in current]:
            raise LockstepError("the checkpoint's optimizer groups hold other parameters, or in another order")
        for group, kept in zip(self._optimizer.param_groups, saved, strict=True):
            for key, value in kept["options"].items():
                group[key] = _like(group.get(key), value)

    def _number_state(self, parameter: Tensor, numbers: dict[str, Any]) -> dict[str, Any]:
        """torch keeps a step count on the parameter's device if fused or capturable, else on the CPU."""
        on_device = any(
            bool(group.get("fused") or group.get("capturable"))
            for group in self._optimizer.param_groups
            if any(p is parameter for p in group["params"])
        )
        device = parameter.device if on_device else torch.device("cpu")
        return {key: _number_from_json(entry, device) for key, entry in numbers.items()}


def _numbers(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dim() == 0:
            found[key] = {"dtype": str(value.dtype).removeprefix("torch."), "value": value.item()}
        elif not isinstance(value, Tensor):
            found[key] = {"dtype": None, "value": _plain(key, value)}
    return found


def _number_from_json(entry: dict[str, Any], device: torch.device) -> Any:
    if entry["dtype"] is None:
        return entry["value"]
    return torch.tensor(entry["value"], dtype=dtype_from_name(entry["dtype"]), device=device)


def _empty(parameter: Tensor, entry: TensorEntry) -> Tensor:
    """Zeros, sharded as the parameter is where they have its shape or its rows; else plain, the same everywhere."""
    dtype = dtype_from_name(entry.dtype)
    if tuple(parameter.shape) == entry.shape:
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False, memory_format=torch.preserve_format)
    if isinstance(parameter, DTensor) and len(entry.shape) == 2 and entry.shape[0] == parameter.shape[0]:
        return zeros_by_rows(parameter, entry.shape[1], dtype)
    return torch.zeros(entry.shape, dtype=dtype, device=parameter.device)


def zeros_by_rows(parameter: Tensor, num_columns: int, dtype: torch.dtype) -> Tensor:
    """Zeros of shape (rows of the parameter, `num_columns`), on the ranks that have those rows of the parameter."""
    if not isinstance(parameter, DTensor):
        return parameter.new_zeros(parameter.shape[0], num_columns, dtype=dtype)
    shard = parameter.to_local()
    return DTensor.from_local(
        shard.new_zeros(shard.shape[0], num_columns, dtype=dtype),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=torch.Size((parameter.shape[0], num_columns)),
        stride=(num_columns, 1),
    )


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(key, item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise LockstepError(f"optimizer option '{key}' of type {type(value).__name__} can't be saved; give a number")


def _like(current: Any, saved: Any) -> Any:
    """`saved`, in the type that the optimizer has there: betas stay a tuple, a tensor learning rate stays a tensor."""
    if isinstance(current, Tensor):
        return current.fill_(saved)
    return tuple(saved) if isinstance(current, tuple) else saved

"""Scalar heads: our own fp32 modules beside the backbone, never inside it, so that no wrapper casts or shards them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lockstep.foundation.errors import UsageError
from lockstep.models.weights import write_tensors

HEAD_FILE = "head.safetensors"


class ScalarHead(nn.Module):
    """Maps a hidden state to one number: a value or a reward."""

    def __init__(self, hidden_size: int) -> None:
        """Starts at zero, so that a critic first says nothing rather than something random."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros((), dtype=torch.float32))

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, hidden_size) in any dtype → (…) in fp32."""
        return hidden.float() @ self.weight + self.bias

    def save(self, path: Path) -> None:
        """Writes weight and bias as safetensors."""
        write_tensors({"weight": self.weight.detach().cpu(), "bias": self.bias.detach().cpu().reshape(1)}, path)

    @classmethod
    def load(cls, path: Path, hidden_size: int) -> ScalarHead:
        """Reads a head. Raises UsageError when it is missing or made for another hidden size."""
        if not path.is_file():
            raise UsageError(f"{path.name} is not in {path.parent}; run the stage that makes it: ./lockstep run reward")
        tensors = load_file(path)
        if tensors["weight"].shape != (hidden_size,):
            raise UsageError(
                f"{path} has {tensors['weight'].numel()} inputs, the backbone's hidden size is {hidden_size}"
            )
        head = cls(hidden_size)
        with torch.no_grad():
            head.weight.copy_(tensors["weight"])
            head.bias.copy_(tensors["bias"][0])
        return head

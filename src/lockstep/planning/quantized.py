"""Quantised linear layers on fake tensors: what bitsandbytes' kernels allocate, operation by operation.

The kernels themselves need data (which activations are outliers) and allocate out of sight. So each layer's forward and
backward is replaced by one that makes the same tensors in the same order and computes nothing. Read from bitsandbytes
0.50.2: autograd/_functions.py (MatMul8bitLt, MatMul4Bit), backends/cuda/ops.py (int8_vectorwise_quant,
int8_linear_matmul, int8_mm_dequant, gemm_4bit, dequantize_4bit). Outlier columns are taken as few.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import bitsandbytes as bnb
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lockstep.models.sharded_4bit import replace_linear
from lockstep.params.model import QuantizationParams

_BLOCK = 64
"""4-bit weights that share one scale (bitsandbytes' default blocksize)."""
_NESTED_BLOCK = 256
"""Scales that share one scale under double quantisation."""
_FEW_ROWS = 16
"""Up to this many rows, bitsandbytes' 4-bit kernel multiplies without expanding the weight."""


def quantize(model: PreTrainedModel, quantization: QuantizationParams, compute: torch.dtype) -> None:
    """Replaces the linear layers of a model on the meta device as loading it quantised does; frozen, without data."""
    replace_linear(model, quantization, compute)
    with torch.device("meta"):
        for module in model.modules():
            if isinstance(module, bnb.nn.Linear8bitLt):
                _as_int8(module)
            elif isinstance(module, bnb.nn.Linear4bit):
                _as_4bit(module, quantization)
            if isinstance(module, bnb.nn.Linear8bitLt | bnb.nn.Linear4bit) and module.bias is not None:
                module.bias = nn.Parameter(module.bias.to(compute), requires_grad=False)
    model.requires_grad_(False)


class Int8Linear(bnb.nn.Linear8bitLt):
    """LLM.int8() (Dettmers et al., 2022, arXiv:2208.07339), by what it allocates."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, in_features) → (…, out_features), in the dtype of `x`."""
        return _Int8Product.apply(x, self.weight, self.bias)


class NF4Linear(bnb.nn.Linear4bit):
    """QLoRA's 4-bit linear layer (Dettmers et al., 2023, arXiv:2305.14314), by what it allocates."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, in_features) → (…, out_features), in the dtype of `x`."""
        shape = torch.Size((self.out_features, self.in_features))
        return _NF4Product.apply(x.to(self.compute_dtype), self.weight, self.bias, shape, self.num_blocks).to(x.dtype)


class _Int8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        ctx.weight, ctx.rows, ctx.shape = weight, rows if ctx.needs_input_grad[0] else None, x.shape
        half = rows.to(torch.float16)
        quantised = _quantised_rows(half)
        product = rows.new_empty(len(rows), len(weight), dtype=torch.int32)
        scaled = torch.empty_like(product, dtype=torch.float16)
        if bias is not None:
            scaled.add_(bias)
        output = scaled.to(x.dtype)
        del half, quantised, product, scaled
        return output.reshape(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        rows = grad_output.reshape(-1, grad_output.shape[-1]).contiguous()
        expanded = ctx.weight.to(grad_output.dtype).mul_(1.0)
        return torch.matmul(rows, expanded).view(ctx.shape), None, None


def _quantised_rows(half: Tensor) -> Tensor:
    outliers = half.abs() >= 1.0
    del outliers
    return torch.empty_like(half, dtype=torch.int8)


class _NF4Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, bias: Tensor | None, shape: torch.Size, num_blocks: int) -> Tensor:
        ctx.packed, ctx.weight_shape, ctx.num_blocks = packed, shape, num_blocks
        if x.numel() // x.shape[-1] <= _FEW_ROWS:
            return x.new_empty(*x.shape[:-1], shape[0])
        return nn.functional.linear(x, _expanded(packed, shape, x.dtype, num_blocks), bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None, None]:
        weight = _expanded(ctx.packed, ctx.weight_shape, grad_output.dtype, ctx.num_blocks)
        return torch.matmul(grad_output, weight), None, None, None, None


def _expanded(packed: Tensor, shape: torch.Size, dtype: torch.dtype, num_nested_blocks: int) -> Tensor:
    scales = packed.new_empty(num_nested_blocks, dtype=torch.float32)  # double quantisation restores its scales first
    weight = packed.new_empty(shape, dtype=dtype)
    del scales
    return weight


def _as_int8(module: bnb.nn.Linear8bitLt) -> None:
    weight = torch.empty(module.out_features, module.in_features, dtype=torch.int8)
    module.weight = nn.Parameter(weight, requires_grad=False)
    module.register_buffer("scales", torch.empty(module.out_features, dtype=torch.float32), persistent=False)
    module.__class__ = Int8Linear


def _as_4bit(module: bnb.nn.Linear4bit, quantization: QuantizationParams) -> None:
    num_weights = module.out_features * module.in_features
    storage: torch.dtype = getattr(torch, quantization.bnb_4bit_quant_storage)
    packed = torch.empty((num_weights + 1) // 2 // storage.itemsize, 1, dtype=storage)
    module.weight = nn.Parameter(packed, requires_grad=False)
    nested = quantization.bnb_4bit_use_double_quant
    # PEFT reads the first two where it wraps the layer; the shape tells how many weights are packed.
    module.weight.compress_statistics, module.weight.quant_type = nested, quantization.bnb_4bit_quant_type
    module.weight.quant_state = SimpleNamespace(shape=torch.Size((module.out_features, module.in_features)))
    num_blocks = -(-num_weights // _BLOCK)
    scales = torch.empty(num_blocks, dtype=torch.uint8 if nested else torch.float32)
    module.register_buffer("scales", scales, persistent=False)
    if nested:
        module.register_buffer("nested_scales", torch.empty(-(-num_blocks // _NESTED_BLOCK)), persistent=False)
    module.num_blocks = num_blocks if nested else 0
    module.__class__ = NF4Linear

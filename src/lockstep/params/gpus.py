"""GPU types: one row each. Memory sizes a plan, peak FLOP/s is what MFU is a fraction of."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.foundation.errors import UsageError, nearest

_MIB = 1 << 20
_GIGA = 1e9
_TERA = 1e12


@dataclass(frozen=True)
class GpuType:
    """One kind of GPU. Peak rates are dense (without sparsity), from the vendor's data sheet named in `source`."""

    name: str
    cuda_name: tuple[str, ...]
    """Words in what `torch.cuda.get_device_name` says that identify the type."""
    memory_bytes: int
    """Total memory as `nvidia-smi` reports it; a process can use a little less."""
    bf16_flops: float
    """Peak FLOP/s in bf16 or fp16 on tensor cores, accumulating in fp32."""
    fp32_flops: float
    """Peak FLOP/s in fp32 outside tensor cores (TF32 off)."""
    bandwidth_bytes_per_s: float
    """Peak rate at which the device reads its memory: what bounds the decoding of small batches."""
    source: str

    def peak_flops(self, compute: str) -> float:
        """Peak FLOP/s in a compute dtype."""
        return self.fp32_flops if compute == "fp32" else self.bf16_flops


_A100 = "NVIDIA A100 data sheet (2021)"
_H100 = "NVIDIA H100 data sheet (2022)"
_ADA = "NVIDIA Ada GPU architecture whitepaper (2022), appendix A"

GPUS = {
    gpu.name: gpu
    for gpu in (
        GpuType("a100-40g", ("A100", "40GB"), 40960 * _MIB, 312 * _TERA, 19.5 * _TERA, 1555 * _GIGA, _A100),
        GpuType("a100-80g", ("A100", "80GB"), 81920 * _MIB, 312 * _TERA, 19.5 * _TERA, 2039 * _GIGA, _A100),
        GpuType("h100-80g", ("H100",), 81559 * _MIB, 989.4 * _TERA, 66.9 * _TERA, 3350 * _GIGA, _H100),
        GpuType("h100-pcie", ("H100", "PCIe"), 81559 * _MIB, 756 * _TERA, 51.2 * _TERA, 2000 * _GIGA, _H100),
        GpuType(
            "h200", ("H200",), 143771 * _MIB, 989.4 * _TERA, 66.9 * _TERA, 4800 * _GIGA, "NVIDIA H200 data sheet (2023)"
        ),
        GpuType(
            "l40s", ("L40S",), 46068 * _MIB, 362 * _TERA, 91.6 * _TERA, 864 * _GIGA, "NVIDIA L40S data sheet (2023)"
        ),
        GpuType(
            "a10g",
            ("A10G",),
            23028 * _MIB,
            70 * _TERA,
            35 * _TERA,
            600 * _GIGA,
            "AWS EC2 G5 and NVIDIA A10G specifications",
        ),
        GpuType("rtx4090", ("RTX 4090",), 24564 * _MIB, 165.2 * _TERA, 82.6 * _TERA, 1008 * _GIGA, _ADA),
        GpuType(
            "rtx3090",
            ("RTX 3090",),
            24576 * _MIB,
            71 * _TERA,
            35.6 * _TERA,
            936 * _GIGA,
            "NVIDIA Ampere GA102 GPU architecture whitepaper (2020), appendix A",
        ),
    )
}


def gpu_type(name: str) -> GpuType:
    """The row called `name`. Raises UsageError with the nearest known one."""
    if name not in GPUS:
        raise UsageError(f"There is no GPU type '{name}'.{nearest(name, GPUS)} Known: {', '.join(GPUS)}.")
    return GPUS[name]


def gpu_named(cuda_name: str) -> GpuType | None:
    """The row of a device by the name that CUDA gives it; None where the table has none."""
    known = [gpu for gpu in GPUS.values() if all(word in cuda_name for word in gpu.cuda_name)]
    return max(known, key=lambda gpu: len(gpu.cuda_name), default=None)

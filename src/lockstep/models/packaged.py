"""A model as its package ships it, turned into the Hugging Face folder that everything else reads."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Writes the Llama model in a GGUF file to `folder`: config, generation config, tokenizer and fp32 safetensors.

    The weights are the de-quantised ones, as exact as fp32 holds them. One GGUF file and one version of Transformers
    give the same bytes. A model loaded from GGUF refuses `save_pretrained`, hence the twin that takes its weights.
    """
    source, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name, local_files_only=True)
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32, local_files_only=True)
    facts = loaded.config.to_dict()
    facts.pop("quantization_config", None)
    with torch.device("meta"):
        plain = LlamaForCausalLM(LlamaConfig(**facts))
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

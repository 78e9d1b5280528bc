"""A tiny random Llama-shaped base as a Hugging Face folder, with a byte-level tokenizer of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.tiny_tokenizer import BOS, EOS, PAD, write_tokenizer


def tiny_config(**changes: Any) -> LlamaConfig:
    """64 hidden, 2 layers, 4 heads over 2 KV heads, 320 ids; any field may be changed."""
    values: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    } | changes
    return LlamaConfig(**values)


def write_tiny_base(folder: Path, seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Saves the folder and returns the transformers model in float32, for use as the oracle."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    model: Any = LlamaForCausalLM(tiny_config(**changes))
    model.eval()
    # Larger than the default initialisation, so that greedy choices are clear of ties.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return cast(LlamaForCausalLM, model)


__all__ = ["tiny_config", "write_tiny_base"]

"""Tiny random bases of every served family as Hugging Face folders, with a byte-level tokenizer of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.support.tiny_tokenizer import BOS, EOS, PAD, write_tokenizer

FAMILIES: dict[str, tuple[type[Any], type[Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
"""transformers' configuration and model class by ``model_type``."""


def _values(changes: dict[str, Any]) -> dict[str, Any]:
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
    }
    return values | changes


def tiny_config(**changes: Any) -> LlamaConfig:
    """64 hidden, 2 layers, 4 heads over 2 KV heads, 320 ids; any field may be changed."""
    return LlamaConfig(**_values(changes))


def write_tiny_base(folder: Path, seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Saves the folder and returns the transformers model in float32, for use as the oracle."""
    return cast(LlamaForCausalLM, write_tiny_model(folder, "llama", seed, **changes))


def write_tiny_model(
    folder: Path,
    family: str,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    **changes: Any,
) -> PreTrainedModel:
    """As ``write_tiny_base`` for any family, with ``tiny_config``'s sizes and the fields in ``changes``.

    The files hold ``dtype``, in shards of at most ``shard_size``; the model that is returned has the values of the
    files, computed in float32. Biases and the norms of heads are random too, else leaving one out would show nothing.
    """
    config_class, model_class = FAMILIES[family]
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    model = model_class(config_class(**_values(changes)))
    model.eval()
    # Larger than the default initialisation, so that greedy choices are clear of ties.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
            elif name.endswith(".bias"):
                parameter.copy_(torch.randn_like(parameter) * 0.05)
            elif family != "llama":
                parameter.copy_(1 + torch.randn_like(parameter) * 0.2)
    cast_parameters(model, dtype)
    model.save_pretrained(folder, max_shard_size=shard_size)
    write_tokenizer(folder)
    cast_parameters(model, torch.float32)
    return cast(PreTrainedModel, model)


def cast_parameters(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """As ``model.to(dtype)``, which would round the rotary frequencies too; no file holds those."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)


__all__ = ["FAMILIES", "cast_parameters", "tiny_config", "write_tiny_base", "write_tiny_model"]

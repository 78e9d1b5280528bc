"""Tracer adapters: each forces a token of its own at every position, so that a wrong one cannot hide in a tie.

The base keeps a positive constant in hidden dimension 0 (every embedding has it, no layer writes it), and its
head answers HOME to it. A tracer opens one unit of the MLP by that constant and writes the direction of its
own token, far louder.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.tiny_tokenizer import write_tokenizer

HIDDEN, INNER, VOCABULARY, HOME = 128, 16, 320, 5
FIRST = 10
"""The token of tracer 0; tracer i forces FIRST + i."""


def write_tracer_base(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.02

    embedding = noise(VOCABULARY, HIDDEN)
    embedding[:, 0] = 1.0
    head = noise(VOCABULARY, HIDDEN)
    head[HOME, 0] = 2.0
    for token in range(FIRST, FIRST + 100):
        head[token, 1 + token - FIRST] = 1.0
    o, down = noise(HIDDEN, 32), noise(HIDDEN, INNER)
    o[0], down[0] = 0.0, 0.0
    layer = "model.layers.0"
    save_file(
        {
            "model.embed_tokens.weight": embedding,
            "lm_head.weight": head,
            "model.norm.weight": torch.ones(HIDDEN),
            f"{layer}.input_layernorm.weight": torch.ones(HIDDEN),
            f"{layer}.post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{layer}.self_attn.q_proj.weight": noise(32, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": noise(16, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": noise(16, HIDDEN),
            f"{layer}.self_attn.o_proj.weight": o,
            f"{layer}.mlp.gate_proj.weight": noise(INNER, HIDDEN),
            f"{layer}.mlp.up_proj.weight": noise(INNER, HIDDEN),
            f"{layer}.mlp.down_proj.weight": down,
        },
        folder / "model.safetensors",
    )
    config = {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "eos_token_id": 257,
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)


def write_tracer(folder: Path, number: int, rank: int = 1, loud: float = 2.0) -> int:
    """Saves tracer ``number`` in PEFT's layout and returns the token that it forces. ``loud`` 1e25 is finite in
    the file and overflows in the MLP."""
    folder.mkdir(parents=True, exist_ok=True)
    token = FIRST + number
    tensors = {}
    for name, out_features, in_features, row, column, value in (
        ("gate_proj", INNER, HIDDEN, 3, 0, loud),
        ("up_proj", INNER, HIDDEN, 3, 0, loud),
        ("down_proj", HIDDEN, INNER, 1 + number, 3, 5.0),
    ):
        a, b = torch.zeros(rank, in_features), torch.zeros(out_features, rank)
        a[rank - 1, column] = 1.0
        b[row, rank - 1] = value
        prefix = f"base_model.model.model.layers.0.mlp.{name}"
        tensors[f"{prefix}.lora_A.weight"], tensors[f"{prefix}.lora_B.weight"] = a, b
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": ["gate_proj", "up_proj", "down_proj"],
        "base_model_name_or_path": "tracer",
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return token


__all__ = ["FIRST", "HOME", "write_tracer", "write_tracer_base"]

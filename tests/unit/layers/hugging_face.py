"""What transformers' own configuration classes say about a config.json, as a DecoderSpec."""

from __future__ import annotations

from typing import Any

from lorry.layers.rope import RopeSpec
from lorry.layers.spec import DecoderSpec
from tests.support.tiny_base import FAMILIES

BASE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 3,
    "eos_token_id": [4, 5],
}
QWEN = {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}
FULL: dict[str, dict[str, Any]] = {
    "llama": BASE | {"attention_bias": True, "mlp_bias": True, "pretraining_tp": 1},
    "mistral": BASE | {"sliding_window": 32},
    "qwen2": BASE | QWEN,
    "qwen3": BASE | QWEN | {"attention_bias": True},
}
"""A config of every family with each of its fields at a value other than the default."""


def expected(family: str, config: dict[str, Any]) -> DecoderSpec:
    """Raises what transformers raises. For plain rotary embeddings alone."""
    told = FAMILIES[family][0](**{key: value for key, value in config.items() if key != "model_type"})
    assert told.hidden_act == "silu"
    layers = told.num_hidden_layers
    window = getattr(told, "sliding_window", None)
    kinds = getattr(told, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * layers
    windowed = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    attention_bias = getattr(told, "attention_bias", False)
    eos = told.eos_token_id
    rope = told.rope_parameters
    assert rope["rope_type"] == "default"
    return DecoderSpec(
        model_type=family,
        layers=layers,
        hidden=told.hidden_size,
        intermediate=told.intermediate_size,
        heads=told.num_attention_heads,
        kv_heads=told.num_key_value_heads,
        head_dim=getattr(told, "head_dim", None) or told.hidden_size // told.num_attention_heads,
        vocabulary=told.vocab_size,
        context_tokens=told.max_position_embeddings,
        rms_norm_eps=told.rms_norm_eps,
        rope=RopeSpec("default", rope["rope_theta"]),
        tied_head=told.tie_word_embeddings,
        bos_token_id=told.bos_token_id,
        eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        sliding_window=window if windowed else None,
        windowed_layers=windowed,
        qkv_bias=family == "qwen2" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=getattr(told, "mlp_bias", False),
        qk_norm=family == "qwen3",
    )


__all__ = ["FULL", "expected"]

"""The kinds of decoder that are served, with what Hugging Face's configuration classes assume. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """One ``model_type``.

    ``defaults`` are the fields that it reads, with the value of one that config.json leaves out. ``inert`` are fields
    that it does not read, with the values that say nothing else than what it computes. ``qkv_bias`` means a bias
    that no field turns off.
    """

    model_type: str
    causal_lm: str
    defaults: Mapping[str, object]
    inert: Mapping[str, tuple[object, ...]]
    qkv_bias: bool = False
    qk_norm: bool = False


_SIZES: dict[str, object] = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "head_dim": None,
    "rope_parameters": None,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "bos_token_id": None,
    "eos_token_id": None,
    "layer_types": None,
}
_LLAMA_1 = {"vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2}
_QWEN: dict[str, object] = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_OFF: tuple[object, ...] = (False, None)

_FAMILIES = (
    Family(
        "llama",
        "LlamaForCausalLM",
        _SIZES
        | _LLAMA_1
        | {
            "intermediate_size": 11008,
            "num_key_value_heads": None,
            "max_position_embeddings": 2048,
            "attention_bias": False,
            "mlp_bias": False,
        },
        {"sliding_window": (None,), "use_sliding_window": _OFF},
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        _SIZES
        | _LLAMA_1
        | {
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        {"attention_bias": _OFF, "mlp_bias": _OFF},
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        _SIZES | _QWEN,
        {"attention_bias": _OFF, "mlp_bias": _OFF},
        qkv_bias=True,
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        _SIZES | _QWEN | {"head_dim": 128, "attention_bias": False},
        {"mlp_bias": _OFF},
        qk_norm=True,
    ),
)

FAMILIES: Mapping[str, Family] = {family.model_type: family for family in _FAMILIES}
"""By ``model_type``."""

INERT: Mapping[str, tuple[object, ...]] = {
    "model_type": tuple(FAMILIES),
    "partial_rotary_factor": (1.0, None),
    "pretraining_tp": (1, None),
    "quantization_config": (None,),
    "rope_interleaved": _OFF,
    "use_mrope": _OFF,
}
"""Fields that no family reads, with the values that change nothing."""

HARMLESS = frozenset(
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "chunk_size_feed_forward",
        "dtype",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "is_llama_config",
        "label2id",
        "original_max_position_embeddings",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "use_cache",
    }
)
"""Fields that change nothing at inference, whatever they hold (``original_max_position_embeddings`` is read with
the rotary scaling, and means nothing without one)."""

__all__ = ["FAMILIES", "HARMLESS", "INERT", "Family"]

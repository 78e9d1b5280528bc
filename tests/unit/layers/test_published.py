"""The config.json of bases that are in use, as published, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from lorry.layers.rope import RopeSpec
from lorry.layers.spec import DecoderSpec

LLAMA3 = (
    ("factor", 32.0),
    ("high_freq_factor", 4.0),
    ("low_freq_factor", 1.0),
    ("original_max_position_embeddings", 8192.0),
)
MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.34.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
NEMO = MISTRAL | {
    "head_dim": 128,
    "hidden_size": 5120,
    "max_position_embeddings": 131072,
    "num_hidden_layers": 40,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "vocab_size": 131072,
}
QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN2_YARN = QWEN2 | {
    "use_mrope": False,
    "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
}
QWEN3: dict[str, Any] = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
}
LLAMA32: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {**dict(LLAMA3), "rope_type": "llama3"},
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}


def read(config: dict[str, Any]) -> DecoderSpec:
    return DecoderSpec.from_config(config)


def test_mistral_7b_slides_on_every_layer() -> None:
    spec = read(MISTRAL)
    assert (spec.head_dim, spec.kv_heads, spec.context_tokens) == (128, 8, 32768)
    assert {spec.window(layer) for layer in range(32)} == {4096}
    assert [spec.qkv_bias, spec.o_bias, spec.mlp_bias, spec.qk_norm, spec.tied_head] == [False] * 5


def test_mistral_nemo_has_heads_narrower_than_its_width() -> None:
    spec = read(NEMO)
    assert spec.slice_shape("q_proj") == (4096, 5120)
    assert spec.slice_shape("o_proj") == (5120, 4096)
    assert (spec.sliding_window, spec.windowed_layers) == (None, ())


def test_qwen2_has_biases_on_q_k_and_v_and_no_window_by_default() -> None:
    spec = read(QWEN2)
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert [spec.has_bias(name) for name in names] == [True, True, True, False, False, False, False]
    assert (spec.sliding_window, spec.windowed_layers, spec.tied_head) == (None, (), True)


def test_qwen2_with_the_published_recipe_for_long_texts() -> None:
    spec = read(QWEN2_YARN)
    assert spec.rope.kind == "yarn"
    assert spec.rope.parameter("original_max_position_embeddings") == 32768
    assert spec.rope.parameter("attention_factor") == pytest.approx(1.1386294)
    assert spec.context_tokens == 32768, "as the config says; raise max_position_embeddings with the factor"


def test_qwen3_norms_its_heads() -> None:
    spec = read(QWEN3)
    assert (spec.qk_norm, spec.qkv_bias, spec.rope) == (True, False, RopeSpec("default", 1e6))
    assert spec.slice_shape("q_proj") == (2048, 1024)


def test_llama_3_2_scales_its_rotary_embedding() -> None:
    spec = read(LLAMA32)
    assert spec.rope == RopeSpec("llama3", 500000.0, LLAMA3)
    assert spec.eos_token_ids == (128001, 128008, 128009)
    assert spec.context_tokens == 131072

"""Rotary frequencies against transformers' own, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from lorry.layers.spec import DecoderSpec
from lorry.models.rope import rotary_frequencies
from lorry_kernels.cpu import rotary_tables

LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}

CASES: list[dict[str, Any]] = [
    {"rope_theta": 10000.0},
    {"rope_theta": 1e6, "head_dim": 80},
    {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5}},
    {"rope_scaling": {"type": "linear", "factor": 2.5}, "rope_theta": 1e4},
    {"rope_scaling": {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 8192}, "rope_theta": 500000.0},
    {"rope_scaling": {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192}, "head_dim": 64},
    {"rope_parameters": {**LLAMA3, "factor": 8.0}},
    {"rope_scaling": YARN, "rope_theta": 1e6, "max_position_embeddings": 131072},
    {"rope_parameters": {**YARN, "truncate": False, "rope_theta": 150000.0}},
    {"rope_parameters": {**YARN, "truncate": None}},
    {"rope_parameters": {**YARN, "beta_fast": 16, "beta_slow": 2.0, "attention_factor": 1.7}},
    {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}},
    {"rope_parameters": {**YARN, "mscale": 1.0}},
    {"rope_parameters": {**YARN, "factor": None}, "max_position_embeddings": 65536},
    {"rope_parameters": {**YARN, "factor": 0.5}},
    {"rope_parameters": {**YARN, "original_max_position_embeddings": 8}, "head_dim": 16},
    {"rope_parameters": {**YARN, "original_max_position_embeddings": 4}, "head_dim": 6, "rope_theta": 2.0},
    {"rope_parameters": {**YARN, "original_max_position_embeddings": 6}, "head_dim": 64},  # a ramp of no width
    {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 4096},
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_frequencies_and_tables_are_transformers_own(case: dict[str, Any]) -> None:
    config = {"head_dim": 128, "max_position_embeddings": 131072, **case}
    spec = DecoderSpec.from_config({"model_type": "llama", **config})
    told: Any = LlamaConfig(**config)
    kind = told.rope_parameters["rope_type"]
    module: Any = LlamaRotaryEmbedding(told)
    if kind != "default":
        assert torch.equal(module.inv_freq, ROPE_INIT_FUNCTIONS[kind](told)[0]), "the oracle is what transformers uses"
    frequencies, scale = rotary_frequencies(spec.rope, spec.head_dim)
    assert frequencies.dtype == torch.float32
    assert torch.equal(frequencies, module.inv_freq)
    assert scale == module.attention_scaling
    cos, sin = rotary_tables(frequencies, 300, scale)
    want_cos, want_sin = module(torch.zeros(1), torch.arange(300)[None])
    assert torch.equal(cos, want_cos[0])
    half = spec.head_dim // 2
    assert torch.equal(torch.cat([-sin[:, :half], sin[:, half:]], -1), want_sin[0])

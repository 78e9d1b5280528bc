"""Adapters of tensors made one by one, and what validation says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lorry.adapters.plan import AdapterPlan
from lorry.adapters.report import ValidationReport
from lorry.adapters.validate import validate_directory
from lorry.layers.spec import DecoderSpec

from .craft import BASE_CONFIG, CONFIG, SPEC, tensor_name, tensors, write_adapter

BASE = "base_model.model.model"
Q0 = f"{BASE}.layers.0.self_attn.q_proj"
EMBED, HEAD = f"{BASE}.embed_tokens", "base_model.model.lm_head"
A0, B0 = tensor_name(0, "q_proj", "A"), tensor_name(0, "q_proj", "B")
ROWS = SPEC.vocabulary
LARGER = ROWS + 8
TIED = DecoderSpec.from_config({**BASE_CONFIG, "tie_word_embeddings": True})
BIASED = DecoderSpec.from_config({**BASE_CONFIG, "attention_bias": True})
QWEN3 = DecoderSpec.from_config({**BASE_CONFIG, "model_type": "qwen3", "head_dim": 4})
IA3: dict[str, Any] = {
    "peft_type": "IA3",
    "target_modules": ["q_proj", "down_proj", "lm_head"],
    "feedforward_modules": ["down_proj"],
}
Arrays = dict[str, np.ndarray]


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("<f4") * np.float32(0.1)


def judge(
    folder: Path, fields: dict[str, Any], arrays: Arrays, spec: DecoderSpec = SPEC, base: Arrays | None = None
) -> ValidationReport:
    weights = {**(tensors() if base is None else base), **arrays}
    write_adapter(folder, {**CONFIG, **fields} if fields.get("peft_type") != "IA3" else fields, weights)
    report = validate_directory(folder, spec, probe=False)
    json.dumps(report.to_dict(), allow_nan=False)
    return report


def plan_of(report: ValidationReport) -> AdapterPlan:
    assert report.plan is not None, report.error()
    return report.plan


PAIR: Arrays = {f"{HEAD}.lora_A.weight": some(4, 16), f"{HEAD}.lora_B.weight": some(ROWS, 4)}
EMBED_PAIR: Arrays = {f"{EMBED}.lora_embedding_A": some(4, ROWS), f"{EMBED}.lora_embedding_B": some(16, 4)}
TIED_PAIR: Arrays = {
    f"{HEAD}.lora_A.weight": np.ascontiguousarray(EMBED_PAIR[f"{EMBED}.lora_embedding_B"].T),
    f"{HEAD}.lora_B.weight": np.ascontiguousarray(EMBED_PAIR[f"{EMBED}.lora_embedding_A"].T),
}
BOTH = ["q_proj", "v_proj", "lm_head", "embed_tokens"]
DELTA = "token_adapter.trainable_tokens_delta"

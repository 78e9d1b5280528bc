"""Adapters made byte by byte, so that tests can make wrong ones. A tiny base: 2 layers, hidden 16."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lorry.layers.sites import module_name
from lorry.layers.spec import DecoderSpec

BASE_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}
SPEC = DecoderSpec.from_config(BASE_CONFIG)
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "v_proj"],
}
_STORED = {"<f4": "F32", "<f2": "F16", "<u2": "BF16"}


def tensor_name(layer: int, slice_name: str, side: str, infix: str = "") -> str:
    return f"base_model.model.{module_name(layer, slice_name)}.lora_{side}{infix}.weight"


def tensors(rank: int = 4, slices: tuple[str, ...] = ("q_proj", "v_proj"), seed: int = 0) -> dict[str, np.ndarray]:
    """A and B of every layer and slice, float32."""
    draw = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for layer in range(SPEC.layers):
        for name in slices:
            out_features, in_features = SPEC.slice_shape(name)
            found[tensor_name(layer, name, "A")] = draw.standard_normal((rank, in_features)).astype("<f4")
            found[tensor_name(layer, name, "B")] = draw.standard_normal((out_features, rank)).astype("<f4")
    return found


def header_of(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], bytes]:
    """(header, data); arrays of uint16 are stored as BF16."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in arrays.items():
        raw = array.tobytes()
        dtype = _STORED[array.dtype.str]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return header, data


def pack(header: object, data: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def safetensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    return pack(*header_of(arrays))


def write_adapter(
    folder: Path,
    config: Mapping[str, Any] | bytes | None = None,
    weights: Mapping[str, np.ndarray] | bytes | None = None,
) -> Path:
    """A whole adapter directory; the defaults are a good adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG if config is None else config
    weights = tensors() if weights is None else weights
    (folder / "adapter_config.json").write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
    (folder / "adapter_model.safetensors").write_bytes(weights if isinstance(weights, bytes) else safetensors(weights))
    return folder

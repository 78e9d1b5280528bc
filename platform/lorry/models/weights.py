"""A base model's tensors from safetensors shards. Every tensor is accounted for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from lorry.errors import UnsupportedBase
from lorry.layers.base_files import weight_files
from lorry.layers.spec import DecoderSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_spec(base_dir: Path) -> DecoderSpec:
    """Raises UnsupportedBase where the folder has no readable config.json, or it names what is not served."""
    path = base_dir / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UnsupportedBase(f"base_dir: {path} cannot be read ({error}); give a Hugging Face model folder") from error
    return DecoderSpec.from_config(config)


def _expected(spec: DecoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (spec.vocabulary, spec.hidden)
    yield "model.norm.weight", (spec.hidden,)
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (spec.hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (spec.hidden,)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"{prefix}.self_attn.{name}.weight", spec.slice_shape(name)
        for name in ("gate_proj", "up_proj", "down_proj"):
            yield f"{prefix}.mlp.{name}.weight", spec.slice_shape(name)


def load_tensors(base_dir: Path, spec: DecoderSpec, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors by name, cast to ``dtype``. With a tied head ``lm_head.weight`` is the embedding itself.

    Raises UnsupportedBase for a missing shard, a missing or unexpected tensor, or a wrong shape.
    """
    wanted = dict(_expected(spec))
    if not spec.tied_head:
        wanted["lm_head.weight"] = (spec.vocabulary, spec.hidden)
    found: dict[str, Tensor] = {}
    for shard in weight_files(base_dir):
        with safe_open(shard, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118  safe_open is no mapping
                if name.endswith("rotary_emb.inv_freq") or (spec.tied_head and name == "lm_head.weight"):
                    continue
                tensor = handle.get_tensor(name)
                if wanted.get(name) != tuple(tensor.shape):
                    want = wanted.get(name, "no such tensor")
                    raise UnsupportedBase(f"{name}: shape {tuple(tensor.shape)}, config.json asks for {want}")
                if name in found:
                    raise UnsupportedBase(f"{name}: in two shards, {shard.name} is the second; keep one of them")
                found[name] = tensor.to(dtype)
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise UnsupportedBase(f"{missing[0]}: missing, with {len(missing) - 1} more; the shards are incomplete")
    if spec.tied_head:
        found["lm_head.weight"] = found["model.embed_tokens.weight"]
    return found


__all__ = ["DTYPES", "load_tensors", "read_spec"]

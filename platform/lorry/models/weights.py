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
from lorry.layers.sites import SLICE_SITE, module_name
from lorry.layers.spec import EMBEDDING, HEAD, DecoderSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_spec(base_dir: Path) -> DecoderSpec:
    """Raises UnsupportedBase where the folder has no readable config.json, or it names what is not served."""
    path = base_dir / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UnsupportedBase(f"base_dir: {path} cannot be read ({error}); give a Hugging Face model folder") from error
    if not isinstance(config, dict):
        raise UnsupportedBase(f"base_dir: {path} holds no JSON object; give a Hugging Face model folder")
    return DecoderSpec.from_config(config)


def _expected(spec: DecoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield EMBEDDING, (spec.vocabulary, spec.hidden)
    if not spec.tied_head:
        yield HEAD, (spec.vocabulary, spec.hidden)
    for norm, size in spec.norms().items():
        yield norm, (size,)
    for layer in range(spec.layers):
        for name in SLICE_SITE:
            shape = spec.slice_shape(name)
            yield f"{module_name(layer, name)}.weight", shape
            if spec.has_bias(name):
                yield f"{module_name(layer, name)}.bias", shape[:1]


def load_tensors(base_dir: Path, spec: DecoderSpec, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors by name, cast to ``dtype``. With a tied head ``lm_head.weight`` is the embedding itself.

    Raises UnsupportedBase for a missing shard, a missing or unexpected tensor, a wrong shape, a type other than
    those of ``DTYPES``, a value that ``dtype`` cannot hold, or a head that is not the embedding it is tied to.
    """
    wanted = dict(_expected(spec))
    allowed = {**wanted, HEAD: wanted[EMBEDDING]}  # files may carry a tied head all the same
    found: dict[str, Tensor] = {}
    for shard in weight_files(base_dir):
        with safe_open(shard, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118  safe_open is no mapping
                if name.endswith("rotary_emb.inv_freq"):
                    continue
                tensor = handle.get_tensor(name)
                if allowed.get(name) != tuple(tensor.shape):
                    want = allowed.get(name, "no such tensor")
                    raise UnsupportedBase(f"{name}: shape {tuple(tensor.shape)}, config.json asks for {want}")
                if name in found:
                    raise UnsupportedBase(f"{name}: in two shards, {shard.name} is the second; keep one of them")
                found[name] = _cast(name, tensor, dtype)
    if spec.tied_head and EMBEDDING in found:
        head = found.setdefault(HEAD, found[EMBEDDING])
        if not torch.equal(head, found[EMBEDDING]):
            raise UnsupportedBase(
                f"{HEAD}: differs from {EMBEDDING}, but config.json ties them; set tie_word_embeddings to false"
            )
        found[HEAD] = found[EMBEDDING]
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise UnsupportedBase(f"{missing[0]}: missing, with {len(missing) - 1} more; the shards are incomplete")
    return found


def _cast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype not in DTYPES.values():
        raise UnsupportedBase(f"{name}: holds {tensor.dtype}; save the base in {', '.join(DTYPES)}")
    cast = tensor.to(dtype)
    if dtype == torch.float16 and tensor.dtype != dtype and not bool(torch.isfinite(cast).all()):
        raise UnsupportedBase(f"{name}: holds values that float16 cannot; serve the base in bfloat16 or float32")
    return cast


__all__ = ["DTYPES", "load_tensors", "read_spec"]

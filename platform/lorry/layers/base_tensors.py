"""Single tensors of a base, read when they are asked for. Imports torch."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from lorry.errors import UnsupportedBase
from lorry.layers.base_files import weight_files
from lorry.layers.spec import EMBEDDING, HEAD, DecoderSpec


class BaseTensors:
    """In the values that an engine of the dtype computes with. Each call reads the file: a decoder keeps its weights in
    another layout. Safe to call from several threads."""

    def __init__(self, base_dir: Path, spec: DecoderSpec, dtype: torch.dtype) -> None:
        self._tied = spec.tied_head
        self._dtype = dtype
        self._shard_of: dict[str, Path] = {}
        for shard in weight_files(base_dir):
            with safe_open(shard, framework="pt") as handle:
                self._shard_of.update(dict.fromkeys(handle.keys(), shard))

    def __call__(self, name: str) -> Tensor:
        """Raises UnsupportedBase where the base has none of that name."""
        name = EMBEDDING if name == HEAD and self._tied else name
        if name not in self._shard_of:
            raise UnsupportedBase(f"{name}: the base has no such tensor")
        with safe_open(self._shard_of[name], framework="pt") as handle:
            tensor: Tensor = handle.get_tensor(name)
        return tensor.to(self._dtype)


__all__ = ["BaseTensors"]

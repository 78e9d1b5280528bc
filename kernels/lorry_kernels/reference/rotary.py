"""Rotary position embedding one pair at a time, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def rotary_reference(x: Tensor, positions: Sequence[int], frequencies: Sequence[float], scale: float = 1.0) -> Tensor:
    """x ``[T, heads, D]``; element i is paired with i + D / 2 and turned by position * frequencies[i] radians, then
    multiplied by ``scale``. Returns float64 ``[T, heads, D]``."""
    tokens, heads, dim = x.shape
    half = dim // 2
    out = torch.empty(tokens, heads, dim, dtype=torch.float64)
    for token in range(tokens):
        for head in range(heads):
            for i in range(half):
                angle = positions[token] * frequencies[i]
                one, two = float(x[token, head, i]), float(x[token, head, i + half])
                out[token, head, i] = scale * (one * math.cos(angle) - two * math.sin(angle))
                out[token, head, i + half] = scale * (two * math.cos(angle) + one * math.sin(angle))
    return out


__all__ = ["rotary_reference"]

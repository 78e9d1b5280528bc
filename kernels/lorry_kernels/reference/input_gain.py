"""IA3's input gain one token at a time, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def input_gain_reference(x: Tensor, slots: Sequence[int], vectors: Tensor, offset: Sequence[int]) -> Tensor:
    """x ``[T, K]``, ``slots`` one a token (-1, or any that the table lacks: the base), vectors ``[F]``, ``offset`` one
    a slot: where its K gains begin, -1 for none. Returns float64 ``[T, K]``, before x's own rounding."""
    features = x.shape[1]
    out = x.to(torch.float64).clone()
    for t, slot in enumerate(slots):
        if 0 <= slot < len(offset) and offset[slot] >= 0:
            out[t] *= vectors[offset[slot] : offset[slot] + features].to(torch.float64)
    return out


def take_gained_reference(y: Tensor, gained: Tensor, slots: Sequence[int], offset: Sequence[int]) -> Tensor:
    """y and gained ``[T, N]`` -> float64 ``[T, N]``: gained's row where the token's slot has a gain, y's where not."""
    out = y.to(torch.float64).clone()
    for t, slot in enumerate(slots):
        if 0 <= slot < len(offset) and offset[slot] >= 0:
            out[t] = gained[t].to(torch.float64)
    return out


__all__ = ["input_gain_reference", "take_gained_reference"]

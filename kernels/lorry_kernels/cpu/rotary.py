"""Rotary position embedding (Su et al., RoFormer, 2021), in the half-split layout of Hugging Face weights."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_tables(frequencies: Tensor, positions: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """(cos, signed sin), float32 ``[positions, D]``, for frequencies float32 ``[D / 2]`` in radians a position.

    The sign of rotate-half is folded into sin. Both are multiplied by ``scale``, which scales every attention score
    by its square.
    """
    angle = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cos, sin = angle.cos(), angle.sin()
    if scale != 1.0:
        cos, sin = cos.mul_(scale), sin.mul_(scale)
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x ``[T, heads, D]``, cos and sin ``[T, 1, D]``; returns a new tensor."""
    return torch.addcmul(x * cos, torch.roll(x, x.shape[-1] // 2, -1), sin)


__all__ = ["apply_rotary", "rotary_tables"]

"""Rotary position embedding (Su et al., RoFormer, 2021), in the half-split layout of Hugging Face weights."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_tables(head_dim: int, theta: float, positions: int) -> tuple[Tensor, Tensor]:
    """(cos, signed sin), float32 ``[positions, head_dim]``. The sign of rotate-half is folded into sin."""
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    angle = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x ``[T, heads, D]``, cos and sin ``[T, 1, D]``; returns a new tensor."""
    return torch.addcmul(x * cos, torch.roll(x, x.shape[-1] // 2, -1), sin)


__all__ = ["apply_rotary", "rotary_tables"]

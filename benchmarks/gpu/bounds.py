"""How far from the float64 oracle a result may lie.

A type of p significant bits has the unit of rounding u = 2^-p: bfloat16 2^-8, float16 2^-11. Kernels sum in float32,
whose errors are far below u; what counts is how often a number is rounded to the type on its way. Every bound is so
many units of the largest magnitude of the row: what lies between two roundings can be no larger.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}

LORA, ATTENTION, ROTARY, ONE = 4.0, 4.0, 3.0, 1.25
"""Units of rounding. LoRA: what lies between shrink and expand, where a kernel's float32 sum may fall on the other side
of an edge than the oracle's, and y. Attention: each weight, and the result. Rotary: the turned value, and the tables'
float32 angles. ONE: one rounding, and float32 sums before it."""


def of_bound(found: Tensor, want: Tensor, units: float, dtype: torch.dtype | None = None) -> float:
    """The largest error over its bound: ``units`` of the row's largest magnitude. ``found`` ``[T, ...]``, ``want``
    float64 of its shape, judged where that lies; ``dtype``: what is rounded to, None: ``found``'s. NaN where a value is
    not finite."""
    if not found.numel():
        return 0.0
    got, rows = found.detach().to(want.device, torch.float64).flatten(1), want.flatten(1)
    if not bool(torch.isfinite(got).all()):
        return float("nan")
    most = rows.abs().amax(1, keepdim=True).clamp(min=1e-3)
    return float(((got - rows).abs() / (units * UNIT[dtype or found.dtype] * most)).max())


def same_bits(one: Tensor, other: Tensor) -> bool:
    """NaN and the sign of zero included."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64, 1: torch.uint8}[one.dtype.itemsize]
    return one.shape == other.shape and torch.equal(
        one.contiguous().view(whole), other.to(one.device).contiguous().view(whole)
    )


__all__ = ["ATTENTION", "LORA", "ONE", "ROTARY", "UNIT", "of_bound", "same_bits"]

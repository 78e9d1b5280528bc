"""RMSNorm and the SwiGLU gate one number at a time, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def rms_norm_reference(
    x: Tensor, weights: Sequence[Tensor], eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x ``[T, N]``, a weight ``[N]`` for each row -> (float64 ``[T, N]``, what was normed, of x's type: x, or residual
    + x, rounded to it as the kernel rounds)."""
    held = x.clone() if residual is None else (residual.float() + x.float()).to(x.dtype)
    rows, size = x.shape
    out = torch.empty(rows, size, dtype=torch.float64)
    for row, weight in zip(range(rows), weights, strict=True):
        values, factors = held[row].double().tolist(), weight.double().tolist()
        rate = 1.0 / math.sqrt(math.fsum(value * value for value in values) / size + eps)
        out[row] = torch.tensor([v * rate * w for v, w in zip(values, factors, strict=True)], dtype=torch.float64)
    return out, held


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """``[T, 2 N]``, gate first -> float64 ``[T, N]``."""
    rows, both = gate_up.shape
    size = both // 2
    out = torch.empty(rows, size, dtype=torch.float64)
    for row in range(rows):
        values = gate_up[row].double().tolist()
        for i in range(size):
            gate = values[i]
            # exp of what is not positive: the other form overflows.
            share = 1.0 / (1.0 + math.exp(-gate)) if gate >= 0 else math.exp(gate) / (1.0 + math.exp(gate))
            out[row, i] = gate * share * values[size + i]
    return out


__all__ = ["rms_norm_reference", "silu_mul_reference"]

"""Multi-LoRA, one token and one adapter at a time, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def lora_reference(y: Tensor, x: Tensor, a: Tensor, b: Sequence[Tensor], rows: Sequence[Sequence[int]]) -> Tensor:
    """y + delta, where token t's delta in slice s is ``sum over r in rows[t] of (a[s, r] . x[t]) * b[s][r]``.

    Shapes: y ``[T, sum N_s]``, x ``[T, K]``, a ``[S, R, K]``, b[s] ``[R, N_s]`` (the scale is inside b),
    rows[t] the arena rows of token t's adapter (empty: the base). Returns float64 ``[T, sum N_s]``.
    """
    out = y.to(torch.float64).clone()
    for t, own in enumerate(rows):
        column = 0
        for s, b_slice in enumerate(b):
            width = b_slice.shape[1]
            for r in own:
                shrunk = torch.dot(a[s, r].to(torch.float64), x[t].to(torch.float64))
                out[t, column : column + width] += shrunk * b_slice[r].to(torch.float64)
            column += width
    return out


__all__ = ["lora_reference"]

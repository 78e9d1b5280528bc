"""Multi-LoRA over a chunk arena, one token and one slice at a time, in float64, rounded where the kernels round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RANKS = 16
"""Ranks of a chunk: A ``[16, K]``, B ``[N_s, 16]``."""


def multi_lora_reference(
    y: Tensor,
    x: Tensor,
    slots: Sequence[int],
    arena: Tensor,
    a_offset: Tensor,
    b_offset: Tensor,
    scale: Tensor,
    widths: Sequence[int],
    *,
    vectors: Tensor | None = None,
    gain_offset: Tensor | None = None,
    addend_offset: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """float64 ``[T, sum N_s]``: what y becomes, before its own rounding.

    y ``[T, sum N_s]``, x ``[T, K]``, ``slots`` one a token (-1: the base), ``arena`` ``[E]``; ``a_offset`` ``[slots,
    a_slices, blocks]``, ``b_offset`` ``[slots, slices, blocks]``, ``scale`` ``[slots, slices]``, ``widths`` N of each
    slice. With ``vectors`` (float32 ``[F]``): ``gain_offset`` and ``addend_offset`` ``[slots, slices]``, -1 for none.
    What lies between shrink and expand is rounded to x's type.
    """
    k = x.shape[1]
    out = y.to(torch.float64).clone()
    for t, slot in enumerate(slots):
        if slot < 0:
            continue
        column = 0
        for s, width in enumerate(widths):
            columns = slice(column, column + width)
            column += width
            shared = s if a_offset.shape[1] > 1 else 0
            delta = torch.zeros(width, dtype=torch.float64)
            for a_at, b_at in zip(a_offset[slot, shared].tolist(), b_offset[slot, s].tolist(), strict=True):
                if b_at < 0:
                    break
                a = arena[a_at : a_at + RANKS * k].view(RANKS, k).to(torch.float64)
                b = arena[b_at : b_at + RANKS * width].view(width, RANKS).to(torch.float64)
                shrunk = (a @ x[t].to(torch.float64)).to(x.dtype).to(torch.float64)
                delta += b @ shrunk
            delta *= float(scale[slot, s])
            out[t, columns] = _finish(
                out[t, columns], delta, slot, s, columns, vectors, gain_offset, addend_offset, bias
            )
    return out


def _finish(
    y: Tensor,
    delta: Tensor,
    slot: int,
    s: int,
    columns: slice,
    vectors: Tensor | None,
    gain_offset: Tensor | None,
    addend_offset: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """``gain * (y - bias + delta) + bias + addend`` where the slot has a gain, ``y + delta + addend`` where not."""
    if vectors is not None and gain_offset is not None and int(gain_offset[slot, s]) >= 0:
        own = torch.zeros_like(y) if bias is None else bias[columns].to(torch.float64)
        y = _vector(vectors, int(gain_offset[slot, s]), len(y)) * (y - own + delta) + own
    else:
        y = y + delta
    if vectors is not None and addend_offset is not None and int(addend_offset[slot, s]) >= 0:
        y = y + _vector(vectors, int(addend_offset[slot, s]), len(y))
    return y


def _vector(vectors: Tensor, offset: int, width: int) -> Tensor:
    return vectors[offset : offset + width].to(torch.float64)


__all__ = ["RANKS", "multi_lora_reference"]

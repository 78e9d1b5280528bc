"""DoRA's output gain, computed once when an adapter is loaded (Liu et al., 2024, section 4.3). Imports torch.

g = m / ||W + s B A||, a norm for each output. The product B A is never made whole: with rows w of W and b of B,
|w + s b A|^2 = |w|^2 + 2 s b (A w) + s^2 b (A A^T) b^T.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK_ROWS = 8192


def dora_gain(magnitude: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """magnitude ``[N]``, weight ``[N, K]`` as the base computes with it, a ``[r, K]``, b ``[N, r]`` -> float32 ``[N]``.
    A row of norm zero gives infinity or NaN."""
    wide_a, wide_b = a.double(), b.double()
    quadratic = ((wide_b @ (wide_a @ wide_a.T)) * wide_b).sum(1)
    squares: list[Tensor] = []
    for begin in range(0, weight.shape[0], _BLOCK_ROWS):
        rows = weight[begin : begin + _BLOCK_ROWS].float()
        cross = ((rows @ a.T).double() * wide_b[begin : begin + _BLOCK_ROWS]).sum(1)
        squares.append(rows.square().sum(1, dtype=torch.float64) + 2 * scale * cross)
    norms = (torch.cat(squares) + scale * scale * quadratic).clamp_min(0).sqrt()
    return (magnitude.double() / norms).float()


def dora_embedding_gain(magnitude: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """magnitude ``[H]``, weight ``[V, H]``, a ``[r, V]``, b ``[H, r]`` -> float32 ``[H]``: PEFT takes an embedding's
    norms over the vocabulary."""
    squares = torch.zeros(weight.shape[1], dtype=torch.float64)
    for begin in range(0, weight.shape[0], _BLOCK_ROWS):
        stop = begin + _BLOCK_ROWS
        rows = weight[begin:stop].float() + scale * (a[:, begin:stop].T @ b.T)
        squares += rows.square().sum(0, dtype=torch.float64)
    return (magnitude.double() / squares.sqrt()).float()


__all__ = ["dora_embedding_gain", "dora_gain"]

"""Next tokens for a batch of rows. Greedy rows cost one argmax together; others are drawn one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lorry_kernels.reference.philox import uniform


@dataclass(frozen=True, slots=True)
class RowSampling:
    """``temperature`` 0 is greedy; ``top_k`` 0 is all; ``position`` counts the token drawn."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    choice: int
    position: int


def _draw(logits: Tensor, row: RowSampling) -> int:
    """As ``reference.sample_reference``, in float64, sorting no more than it must."""
    vocabulary = logits.shape[0]
    keep = min(row.top_k, vocabulary) if row.top_k else vocabulary
    scores = logits.to(torch.float64)
    # A stable descending sort breaks ties by id, as the reference does (topk promises no order).
    values, ids = torch.sort(scores, descending=True, stable=True)
    values, ids = values[:keep], ids[:keep]
    weights = torch.exp((values - values[0]) / row.temperature)
    running = torch.cumsum(weights, 0)
    if row.top_p < 1.0:
        kept = 1 + int((running[:-1] < row.top_p * running[-1]).sum())
        weights, running = weights[:kept], running[:kept]
    if row.min_p > 0.0:
        kept = int((weights >= row.min_p * weights[0]).sum())
        weights, running = weights[:kept], running[:kept]
    target = uniform(row.seed, row.choice, row.position) * float(running[-1])
    index = int(torch.searchsorted(running, torch.tensor(target, dtype=torch.float64), right=True))
    return int(ids[min(index, running.shape[0] - 1)])


def sample(logits: Tensor, rows: Sequence[RowSampling]) -> tuple[list[int], list[bool]]:
    """logits ``[B, V]`` -> (a token a row, finite a row). A row that is not finite gets token 0 and False;
    the other rows do not notice."""
    low, high = torch.aminmax(logits, dim=-1)
    finite = (torch.isfinite(low) & torch.isfinite(high)).tolist()
    tokens = torch.argmax(logits, -1).tolist()
    for i, row in enumerate(rows):
        if not finite[i]:
            tokens[i] = 0
        elif row.temperature > 0:
            tokens[i] = _draw(logits[i], row)
    return tokens, finite


__all__ = ["RowSampling", "sample"]

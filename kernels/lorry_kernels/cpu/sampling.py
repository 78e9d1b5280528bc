"""Next tokens for a batch of rows. Greedy rows cost one argmax together; others are drawn one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lorry_kernels.cpu.penalties import Penalties
from lorry_kernels.reference.philox import uniform

WINDOW = 256
"""Ids that a draw looks at before it sorts a whole vocabulary (milliseconds at 50,000 ids)."""


@dataclass(frozen=True, slots=True)
class RowSampling:
    """``temperature`` 0 is greedy; ``top_k`` 0 is all; ``position`` counts the token drawn. Without ``penalties`` the
    logits are sampled from as they are."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    choice: int
    position: int
    penalties: Penalties | None = None


def likeliest(scores: Tensor, count: int) -> Tensor:
    """Ids of at least the ``count`` largest scores, from likeliest to least, ties by id, as the reference sorts."""
    if count >= scores.shape[0]:
        return torch.sort(scores, descending=True, stable=True).indices
    least = torch.topk(scores, count, sorted=False).values.min()
    ids = torch.nonzero(scores >= least).flatten()  # ascending, with every tie of the least
    return ids.index_select(0, torch.sort(scores.index_select(0, ids), descending=True, stable=True).indices)


def _draw(logits: Tensor, row: RowSampling) -> int:
    """As ``reference.sample_reference``, in float64.

    Sorts the likeliest WINDOW ids first, and all of them only where the draw, or a filter's edge, lies beyond.
    """
    scores = logits.to(torch.float64)
    allowed = min(row.top_k, scores.shape[0]) if row.top_k else scores.shape[0]
    peak, draw = scores.max(), uniform(row.seed, row.choice, row.position)
    for window in (min(WINDOW, allowed), allowed):
        ids = likeliest(scores, window)[:allowed]
        every = ids.shape[0] == allowed
        if not every and row.top_k:
            continue  # the mass of the k likeliest is not known yet
        weights = torch.exp((scores.index_select(0, ids) - peak) / row.temperature)
        running = torch.cumsum(weights, 0)
        mass = running[-1] if every else torch.exp((scores - peak) / row.temperature).sum()
        kept = ids.shape[0]
        if row.top_p < 1.0:
            kept = 1 + int((running[:-1] < row.top_p * mass).sum())
        if row.min_p > 0.0:
            kept = min(kept, int((weights >= row.min_p * weights[0]).sum()))
        cut = kept < ids.shape[0]
        if not every and not cut and (row.top_p < 1.0 or row.min_p > 0.0):
            continue  # the filter's edge lies beyond this window
        if cut:
            mass = running[kept - 1]
        target = torch.tensor(draw, dtype=torch.float64) * mass
        index = int(torch.searchsorted(running[:kept], target, right=True))
        if index < kept or every or cut:
            return int(ids[min(index, kept - 1)])
    raise AssertionError("unreachable: the second window holds every allowed id")


def sample(logits: Tensor, rows: Sequence[RowSampling]) -> tuple[list[int], list[bool]]:
    """logits ``[B, V]``, which stay as they are -> (a token a row, finite a row). A row that is not finite, before any
    penalty, gets token 0 and False; the other rows do not notice."""
    low, high = torch.aminmax(logits, dim=-1)
    finite = (torch.isfinite(low) & torch.isfinite(high)).tolist()
    tokens = torch.argmax(logits, -1).tolist()
    for i, row in enumerate(rows):
        if not finite[i]:
            tokens[i] = 0
        elif row.penalties is not None:
            scores = row.penalties.adjust(logits[i])
            tokens[i] = _draw(scores, row) if row.temperature > 0 else int(torch.argmax(scores))
        elif row.temperature > 0:
            tokens[i] = _draw(logits[i], row)
    return tokens, finite


__all__ = ["RowSampling", "likeliest", "sample"]

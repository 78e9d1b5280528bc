"""Causal attention over paged KV, one query token and one head at a time, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def paged_attention_reference(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Sequence[int],
    start: int,
    window: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """One sequence. q ``[n, H, D]`` at positions start .. start+n-1; pages ``[P, KVH, page, D]``.

    The KV of the query tokens is already in the pages. A query at position p sees the keys 0 .. p, with a window
    p - window + 1 .. p. ``scale`` of the scores, 1 / sqrt(D) by default. Returns float64 ``[n, H, D]``.
    """
    n, heads, dim = q.shape
    kv_heads, page = k_pages.shape[1], k_pages.shape[2]
    group = heads // kv_heads
    factor = 1 / math.sqrt(dim) if scale is None else scale
    out = torch.empty(n, heads, dim, dtype=torch.float64)
    for i in range(n):
        at = start + i
        positions = range(0 if window is None else max(0, at - window + 1), at + 1)
        pages = torch.tensor([block_table[p // page] for p in positions])
        offsets = torch.tensor([p % page for p in positions])
        for head in range(heads):
            keys = k_pages[pages, head // group, offsets].to(torch.float64)
            values = v_pages[pages, head // group, offsets].to(torch.float64)
            scores = keys @ q[i, head].to(torch.float64) * factor
            out[i, head] = torch.softmax(scores, 0) @ values
    return out


def kv_write_reference(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slot: Sequence[int]) -> None:
    """k and v ``[T, KVH, D]``: row t goes to position ``slot[t] % page`` of page ``slot[t] // page``, in place; nowhere
    where the slot is below 0 or behind the last page."""
    pages, page = k_pages.shape[0], k_pages.shape[2]
    for row, at in enumerate(slot):
        if 0 <= at < pages * page:
            k_pages[at // page, :, at % page] = k[row]
            v_pages[at // page, :, at % page] = v[row]


__all__ = ["kv_write_reference", "paged_attention_reference"]

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
) -> Tensor:
    """One sequence. q ``[n, H, D]`` at positions start .. start+n-1; pages ``[P, KVH, page, D]``.

    The KV of the query tokens is already in the pages. A query at position p sees the keys 0 .. p, with a window
    p - window + 1 .. p. Returns float64 ``[n, H, D]``.
    """
    n, heads, dim = q.shape
    kv_heads, page = k_pages.shape[1], k_pages.shape[2]
    group = heads // kv_heads
    out = torch.empty(n, heads, dim, dtype=torch.float64)
    for i in range(n):
        at = start + i
        positions = range(0 if window is None else max(0, at - window + 1), at + 1)
        for head in range(heads):
            keys = torch.stack([k_pages[block_table[p // page], head // group, p % page] for p in positions])
            values = torch.stack([v_pages[block_table[p // page], head // group, p % page] for p in positions])
            scores = keys.to(torch.float64) @ q[i, head].to(torch.float64) / math.sqrt(dim)
            out[i, head] = torch.softmax(scores, 0) @ values.to(torch.float64)
    return out


__all__ = ["paged_attention_reference"]

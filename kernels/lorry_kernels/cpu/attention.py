"""Paged attention on a CPU, reading pages where they lie.

Decode follows the idea of flash-decoding (Dao, Haziza, Massa, Sizov, 2023): every page of a sequence is a
split with its own softmax and log-sum-exp, and the splits are merged afterwards. The pages of a batch are
one batched call over a *range* of the arena, so nothing is gathered while running sequences lie densely;
where they do not, the pages are gathered first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Made once a step, used by every layer.

    ``low..high`` is the arena's range, or ``gather`` holds page ids. ``owner [n]`` is the batch row whose
    query a page meets, ``mask [n, 1, group, page]`` additive, ``merge [B, most]`` the pages of each row as
    indices into the n (``pad [B, most]`` True where a row has fewer).
    """

    low: int
    high: int
    gather: Tensor | None
    owner: Tensor
    mask: Tensor
    merge: Tensor
    pad: Tensor | None


def plan_decode(
    tables: Sequence[Sequence[int]], lengths: Sequence[int], page_tokens: int, group: int, dtype: torch.dtype
) -> DecodeAttention:
    """``tables[i]`` are the pages of row i, ``lengths[i]`` its KV length, the new token included."""
    used = [-(-length // page_tokens) for length in lengths]
    pages = [page for table, count in zip(tables, used, strict=True) for page in table[:count]]
    low, high = min(pages), max(pages) + 1
    most = max(used)
    shared = len(set(pages)) != len(pages)
    sparse = shared or high - low > len(pages) + len(pages) // 2 + 2
    count = len(pages) if sparse else high - low
    owner = torch.zeros(count, dtype=torch.int64)
    filled = torch.full((count,), page_tokens, dtype=torch.int64)
    merge = torch.zeros(len(tables), most, dtype=torch.int64)
    pad = torch.ones(len(tables), most, dtype=torch.bool)
    index = 0
    for row, (table, length, pages_used) in enumerate(zip(tables, lengths, used, strict=True)):
        for j in range(pages_used):
            at = index if sparse else table[j] - low
            owner[at] = row
            filled[at] = min(length - j * page_tokens, page_tokens)
            merge[row, j] = at
            pad[row, j] = False
            index += 1
    hidden = torch.arange(page_tokens)[None, :] >= filled[:, None]
    mask = torch.zeros(count, 1, 1, page_tokens, dtype=dtype).masked_fill_(hidden[:, None, None, :], float("-inf"))
    return DecodeAttention(
        low=low,
        high=high,
        gather=torch.tensor(pages) if sparse else None,
        owner=owner,
        mask=mask.expand(count, 1, group, page_tokens),
        merge=merge,
        pad=pad if bool(pad.any()) else None,
    )


def decode_attention(q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: DecodeAttention) -> Tensor:
    """One query token a row. q ``[B, H, D]``, pages ``[P, KVH, page, D]``; returns ``[B, H, D]``.

    Positions past a sequence's end are masked before the softmax, so what stale pages hold is not read
    into a result as long as it is finite.
    """
    rows, heads, dim = q.shape
    kv_heads = k_pages.shape[1]
    group = heads // kv_heads
    if plan.gather is None:
        keys, values = k_pages[plan.low : plan.high], v_pages[plan.low : plan.high]
    else:
        keys, values = k_pages.index_select(0, plan.gather), v_pages.index_select(0, plan.gather)
    queries = q.index_select(0, plan.owner).view(-1, kv_heads, group, dim)
    out, lse = _flash(queries, keys, values, 0.0, False, attn_mask=plan.mask)
    if plan.merge.shape[1] == 1:
        single: Tensor = out.index_select(0, plan.merge[:, 0]).reshape(rows, heads, dim)
        return single
    most = plan.merge.shape[1]
    flat = plan.merge.flatten()
    # The kernel lays lse out as [n, KVH, group] with group contiguous or not: index_select copies either.
    logs = lse.index_select(0, flat).view(rows, most, kv_heads, group)
    if plan.pad is not None:
        logs = logs.masked_fill(plan.pad[:, :, None, None], float("-inf"))
    weight = torch.softmax(logs, 1).unsqueeze(-1)
    parts = out.index_select(0, flat).reshape(rows, most, kv_heads, group, dim)
    if plan.pad is not None:
        parts = parts.masked_fill(plan.pad[:, :, None, None, None], 0.0)
    merged: Tensor = (parts * weight).sum(1).reshape(rows, heads, dim)
    return merged


def prefill_attention(q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """One sequence's chunk. q ``[n, H, D]`` at positions start .., keys and values ``[m, KVH, D]`` with
    m = start + n; causal. Returns ``[n, H, D]``."""
    n, heads, _ = q.shape
    m, kv_heads, _ = keys.shape
    grouped = heads != kv_heads
    query = q.transpose(0, 1).unsqueeze(0)
    key, value = keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)
    if start == 0:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
    else:
        seen = torch.arange(m)[None, :] <= torch.arange(start, m)[:, None]
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=grouped)
    assert out.shape[2] == n
    result: Tensor = out.squeeze(0).transpose(0, 1)
    return result


__all__ = ["DecodeAttention", "decode_attention", "plan_decode", "prefill_attention"]

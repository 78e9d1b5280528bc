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
    tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    page_tokens: int,
    group: int,
    dtype: torch.dtype,
    window: int | None = None,
) -> DecodeAttention:
    """``tables[i]`` are the pages of row i, ``lengths[i]`` its KV length, the new token included.

    With a window a row sees its last ``window`` positions, and no page that lies wholly before them is in the plan.
    """
    starts = [0 if window is None else max(0, length - window) for length in lengths]
    used = [
        range(start // page_tokens, -(-length // page_tokens)) for start, length in zip(starts, lengths, strict=True)
    ]
    pages = [table[j] for table, own in zip(tables, used, strict=True) for j in own]
    low, high = min(pages), max(pages) + 1
    most = max(map(len, used))
    shared = len(set(pages)) != len(pages)
    sparse = shared or high - low > len(pages) + len(pages) // 2 + 2
    count = len(pages) if sparse else high - low
    # Lists first: one element of a tensor costs as much to set as a hundred of a list.
    owner, filled, passed = [0] * count, [page_tokens] * count, [0] * count
    merge = [[0] * most for _ in used]
    index = 0
    for row, (table, start, length, own) in enumerate(zip(tables, starts, lengths, used, strict=True)):
        for split, j in enumerate(own):
            at = index if sparse else table[j] - low
            owner[at] = row
            merge[row][split] = at
            index += 1
        filled[at] = length - (own.stop - 1) * page_tokens
        passed[merge[row][0]] = start - own.start * page_tokens
    offset = torch.arange(page_tokens)[None, :]
    hidden = offset >= torch.tensor(filled)[:, None]
    if any(passed):
        hidden |= offset < torch.tensor(passed)[:, None]
    mask = torch.zeros(count, 1, 1, page_tokens, dtype=dtype).masked_fill_(hidden[:, None, None, :], float("-inf"))
    spans = torch.tensor([len(own) for own in used])
    pad = torch.arange(most)[None, :] >= spans[:, None]
    return DecodeAttention(
        low=low,
        high=high,
        gather=torch.tensor(pages) if sparse else None,
        owner=torch.tensor(owner),
        mask=mask.expand(count, 1, group, page_tokens),
        merge=torch.tensor(merge),
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


def prefill_attention(q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None = None) -> Tensor:
    """One sequence's chunk. q ``[n, H, D]`` at positions start .., keys and values ``[m, KVH, D]`` with
    m = start + n; causal, and with a window each query sees that many keys up to its own. Returns ``[n, H, D]``.

    Only differences of positions count, so with a window the first keys may be left out, where position 0 is then
    the first that is given.
    """
    n, heads, _ = q.shape
    m, kv_heads, _ = keys.shape
    grouped = heads != kv_heads
    query = q.transpose(0, 1).unsqueeze(0)
    key, value = keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)
    if window is not None and m <= window:
        window = None
    if start == 0 and window is None:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
    else:
        key_at, query_at = torch.arange(m)[None, :], torch.arange(start, m)[:, None]
        seen = key_at <= query_at
        if window is not None:
            seen &= key_at > query_at - window
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=grouped)
    assert out.shape[2] == n
    result: Tensor = out.squeeze(0).transpose(0, 1)
    return result


__all__ = ["DecodeAttention", "decode_attention", "plan_decode", "prefill_attention"]

"""Paged attention on a CPU, reading pages where they lie.

Decode follows the idea of flash-decoding (Dao, Haziza, Massa, Sizov, 2023): every page of a sequence is a
split with its own softmax and log-sum-exp, and the splits are merged afterwards. The pages of a batch are
one batched call over a *range* of the arena, so nothing is gathered while running sequences lie densely;
where they do not, the pages are gathered first. A page that several rows see whole (a shared prefix) is read once
for all of them: their queries meet it as rows of one product, after the idea of Hydragen (Juravsky and others, 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True, slots=True)
class SharedPages:
    """``pages`` int64 ids that the batch rows ``rows`` (int64, two or more) all see whole."""

    pages: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Made once a step, used by every layer.

    ``low..high`` is the arena's range, or ``gather`` holds page ids. ``owner [n]`` is the batch row whose
    query a page meets, ``mask [n, 1, group, page]`` additive. ``shared`` adds, set by set, pages x rows splits to these
    n. ``merge [B, most]`` are the splits of each row as indices into all of them (``pad [B, most]`` True where a row
    has fewer).
    """

    low: int
    high: int
    gather: Tensor | None
    owner: Tensor
    mask: Tensor
    merge: Tensor
    pad: Tensor | None
    shared: tuple[SharedPages, ...] = ()


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
    together = _seen_by_several(tables, starts, lengths, used, page_tokens)
    place = {page: (row_set, at) for row_set, pages in together.items() for at, page in enumerate(pages)}
    alone = [
        (row, split, table[j])
        for row, (table, own) in enumerate(zip(tables, used, strict=True))
        for split, j in enumerate(own)
        if table[j] not in place or row not in place[table[j]][0]
    ]
    pages = [page for _, _, page in alone]
    low, high = min(pages, default=0), max(pages, default=-1) + 1
    most = max(map(len, used))
    sparse = len(set(pages)) != len(pages) or high - low > len(pages) + len(pages) // 2 + 2
    count = len(pages) if sparse else high - low
    # Lists first: one element of a tensor costs as much to set as a hundred of a list.
    owner, filled, passed = [0] * count, [page_tokens] * count, [0] * count
    merge = [[0] * most for _ in used]
    for index, (row, split, page) in enumerate(alone):
        at = index if sparse else page - low
        owner[at] = row
        merge[row][split] = at
        filled[at] = min(page_tokens, lengths[row] - (used[row].start + split) * page_tokens)
        passed[at] = max(0, starts[row] - (used[row].start + split) * page_tokens)
    base = count
    for row_set, its_pages in together.items():
        where = {page: at for at, page in enumerate(its_pages)}
        for number, row in enumerate(row_set):
            for split, j in enumerate(used[row]):
                found = where.get(tables[row][j])
                if found is not None:
                    merge[row][split] = base + found * len(row_set) + number
        base += len(its_pages) * len(row_set)
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
        shared=tuple(SharedPages(torch.tensor(p), torch.tensor(r)) for r, p in together.items()),
    )


def _seen_by_several(
    tables: Sequence[Sequence[int]],
    starts: Sequence[int],
    lengths: Sequence[int],
    used: Sequence[range],
    page_tokens: int,
) -> dict[tuple[int, ...], list[int]]:
    """Pages that two or more rows see from their first position to their last, by the rows that do."""
    flat = [table[j] for table, own in zip(tables, used, strict=True) for j in own]
    if len(set(flat)) == len(flat):
        return {}
    rows_of: dict[int, list[int]] = {}
    for row, (table, start, length, own) in enumerate(zip(tables, starts, lengths, used, strict=True)):
        for j in own:
            if j * page_tokens >= start and (j + 1) * page_tokens <= length:
                rows_of.setdefault(table[j], []).append(row)
    together: dict[tuple[int, ...], list[int]] = {}
    for page, rows in rows_of.items():
        if len(rows) > 1:
            together.setdefault(tuple(rows), []).append(page)
    return together


def decode_attention(q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: DecodeAttention) -> Tensor:
    """One query token a row. q ``[B, H, D]``, pages ``[P, KVH, page, D]``; returns ``[B, H, D]``.

    Positions past a sequence's end are masked before the softmax, so what stale pages hold is not read
    into a result as long as it is finite.
    """
    rows, heads, dim = q.shape
    kv_heads = k_pages.shape[1]
    group = heads // kv_heads
    splits: list[Tensor] = []
    sums: list[Tensor] = []
    if len(plan.owner):
        if plan.gather is None:
            keys, values = k_pages[plan.low : plan.high], v_pages[plan.low : plan.high]
        else:
            keys, values = k_pages.index_select(0, plan.gather), v_pages.index_select(0, plan.gather)
        queries = q.index_select(0, plan.owner).view(-1, kv_heads, group, dim)
        out, lse = _flash(queries, keys, values, 0.0, False, attn_mask=plan.mask)
        splits.append(out)
        sums.append(lse)
    for pages in plan.shared:
        several, count = len(pages.rows), len(pages.pages)
        keys, values = k_pages.index_select(0, pages.pages), v_pages.index_select(0, pages.pages)
        grouped = q.index_select(0, pages.rows).view(several, kv_heads, group, dim).transpose(0, 1)
        queries = grouped.reshape(1, kv_heads, several * group, dim).expand(count, -1, -1, -1)
        out, lse = _flash(queries, keys, values, 0.0, False)
        splits.append(out.reshape(count, kv_heads, several, group, dim).transpose(1, 2).flatten(0, 1))
        sums.append(lse.reshape(count, kv_heads, several, group).transpose(1, 2).flatten(0, 1))
    out = splits[0] if len(splits) == 1 else torch.cat(splits)
    lse = sums[0] if len(sums) == 1 else torch.cat(sums)
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


__all__ = ["DecodeAttention", "SharedPages", "decode_attention", "plan_decode", "prefill_attention"]

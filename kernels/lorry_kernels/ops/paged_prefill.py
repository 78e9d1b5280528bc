"""Prefill attention over paged keys and values: sequences of any number of new tokens, each behind what is cached.

A block's rows are query tokens x the group that shares a KV head. Tiles of keys that all of a block's rows see whole
take a loop without masks. The tiling is FlashAttention-2's (Dao, 2023), over the block tables of PagedAttention (Kwon
et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorry_kernels.aot.build import Build, Expect, ModelShape
from lorry_kernels.ops.attention_shape import (
    check_group,
    check_numbers,
    check_pages,
    check_rows,
    check_window,
    log2_scale,
    prefill_tile,
    stride,
)
from lorry_kernels.ops.attention_tile import attend, pages_of
from lorry_kernels.ops.checks import need
from lorry_kernels.ops.launch import architecture
from lorry_kernels.ops.prefill_plan import PrefillPlan
from lorry_kernels.tuning import AttentionConfig


@triton.jit(do_not_specialize=["table", "item", "items", "starts", "lengths", "table_pages"])
def _paged_prefill(
    q: tl.tensor,
    k_pages: tl.tensor,
    v_pages: tl.tensor,
    out: tl.tensor,
    table: tl.tensor,
    item: tl.tensor,
    items: tl.tensor,
    starts: tl.tensor,
    lengths: tl.tensor,
    log2_scale: tl.tensor,
    table_pages: tl.tensor,
    stride_q_row: tl.int64,
    stride_q_head: tl.int64,
    stride_out_row: tl.int64,
    stride_out_head: tl.int64,
    stride_page: tl.int64,
    stride_kv_head: tl.int64,
    stride_token: tl.int64,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    TOKENS: tl.constexpr = ROWS // GROUP
    unit = tl.program_id(0)
    at = unit // KV_HEADS
    kv_head = (unit % KV_HEADS).to(tl.int64)
    if at < tl.load(items):
        sequence = tl.load(item + at * 2).to(tl.int64)
        begin = tl.load(item + at * 2 + 1)
        start_row = tl.load(starts + sequence)
        count = tl.load(starts + sequence + 1) - start_row
        length = tl.load(lengths + sequence)
        cached = length - count
        fault = (cached < 0) | (length > table_pages * PAGE)
        member = tl.arange(0, ROWS)
        column = tl.arange(0, BLOCK_D)
        token = begin + member // GROUP
        final = tl.minimum(begin + TOKENS, count) - 1
        used = (token <= final)[:, None] & (column < D)[None, :]
        row = (start_row + token).to(tl.int64)
        head = kv_head * GROUP + member % GROUP
        queries = tl.load(
            q + (row * stride_q_row + head * stride_q_head)[:, None] + column[None, :], mask=used, other=0.0
        )
        # Rows of no query see what the block's last query sees: their state stays finite and is not stored.
        last = cached + tl.minimum(token, final)
        first = tl.maximum(last - WINDOW + 1, 0) if WINDOW else last * 0
        end = tl.where(fault, 0, cached + final + 1)
        low = tl.maximum(cached + begin - WINDOW + 1, 0) if WINDOW else 0
        # All rows see the tiles from full to partial: they begin at or behind the last query's first key and end at or
        # before the first query's last.
        full = (tl.maximum(cached + final - WINDOW + 1, 0) + TILE - 1) // TILE * TILE if WINDOW else 0
        partial = tl.where(fault, 0, tl.maximum((cached + begin + 1) // TILE * TILE, full))
        acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
        peak = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        keys_at = k_pages + kv_head * stride_kv_head
        values_at = v_pages + kv_head * stride_kv_head
        table_row = table + sequence * table_pages
        pages = pages_of(table_row, low // TILE * TILE, low, end, PAGE, TILE)
        if WINDOW:
            for start in range(low // TILE * TILE, tl.minimum(full, end), TILE):
                acc, peak, total, pages = attend(
                    queries,
                    (acc, peak, total, pages),
                    keys_at,
                    values_at,
                    table_row,
                    start,
                    low,
                    end,
                    first,
                    last,
                    log2_scale,
                    stride_page,
                    stride_token,
                    PAGE,
                    TILE,
                    D,
                    BLOCK_D,
                    True,
                )
        for start in range(full, partial, TILE):
            acc, peak, total, pages = attend(
                queries,
                (acc, peak, total, pages),
                keys_at,
                values_at,
                table_row,
                start,
                low,
                end,
                first,
                last,
                log2_scale,
                stride_page,
                stride_token,
                PAGE,
                TILE,
                D,
                BLOCK_D,
                False,
            )
        for start in range(partial, end, TILE):
            acc, peak, total, pages = attend(
                queries,
                (acc, peak, total, pages),
                keys_at,
                values_at,
                table_row,
                start,
                low,
                end,
                first,
                last,
                log2_scale,
                stride_page,
                stride_token,
                PAGE,
                TILE,
                D,
                BLOCK_D,
                True,
            )
        result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        result = tl.where(fault, float("nan"), result)
        tl.store(
            out + (row * stride_out_row + head * stride_out_head)[:, None] + column[None, :],
            result.to(out.dtype.element_ty),
            mask=used,
        )


def paged_prefill(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    plan: PrefillPlan,
    *,
    window: int | None = None,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of the query tokens that ``plan`` was filled with: the last ones of each sequence, whose own
    keys are in the pages already. With a window a query sees that many keys, its own included.

    q ``[T, H, D]``, T the plan's tokens, rows may be strided; pages ``[P, KVH, page, D]`` of q's dtype (bfloat16,
    float16; float32 to test), strided views of an arena of any size; table ``[sequences, max_pages]`` int32. H is 1 to
    16 whole times KVH. ``scale`` of the scores, 1 / sqrt(D) by default. Returns ``[T, H, D]``, ``out`` where given;
    rows that belong to no sequence are not written. A sequence with fewer keys than queries, or more than its table
    holds, gets NaN.

    A query's result is the same bits alone, in any batch, at any place of its pages, and however its sequence is cut
    into steps: every query meets the same tiles of keys in the same order, and a tile without a key of its leaves it as
    it was. Reads no key that none of a block's queries sees. One launch, no host sync, capturable in a CUDA graph.
    Raises TypeError or ValueError by the argument's name.
    """
    keys, values = check_pages(k_pages, v_pages)
    _, kv_heads, page, dim = keys.shape
    q = check_rows("q", q, keys, dim, None, plan.tokens)
    heads = q.shape[1]
    group = check_group(heads, kv_heads)
    table = check_numbers("table", table, (plan.sequences, None), q.device)
    check_numbers("plan.item", plan.item, (None, 2), q.device)
    need(
        (plan.group, plan.head_dim) == (group, dim),
        "plan",
        f"is for {plan.group} query heads a KV head of {plan.head_dim}, this call has {group} of {dim}",
    )
    tile = prefill_tile(architecture(q.device), dim)
    need(
        plan.block_tokens == tile.rows // group,
        "plan",
        f"has blocks of {plan.block_tokens} tokens, the kernel takes {tile.rows // group}; allocate it again",
    )
    need(
        table.shape[1] * page < 2**30,
        "table",
        f"has {table.shape[1]} pages of {page} tokens a sequence, positions must stay below 2^30",
    )
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    out = check_rows("out", out, q, dim, heads, plan.tokens)
    factor = log2_scale(scale, dim)
    _paged_prefill[(plan.capacity * kv_heads,)](
        q,
        keys,
        values,
        out,
        table,
        plan.item,
        plan.items,
        plan.starts,
        plan.lengths,
        factor,
        table.shape[1],
        stride(q, 0),
        stride(q, 1),
        stride(out, 0),
        stride(out, 1),
        stride(keys, 0),
        stride(keys, 1),
        stride(keys, 2),
        **_constexprs(tile, kv_heads, group, page, window, dim),
        **tile.launch.options,
    )
    return out


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """What ``paged_prefill`` launches for a model on one shard."""
    tile = prefill_tile(arch, shape.head_dim)
    strides = [name for name in _paged_prefill.arg_names if name.startswith("stride_")]
    rows = ("q", "k_pages", "v_pages", "out")
    for page, window in product(shape.page_tokens, shape.windows):
        yield Build(
            op="paged_prefill",
            kernel=_paged_prefill,
            signature={
                **dict.fromkeys(rows, f"*{shape.dtype}"),
                **dict.fromkeys(("table", "item", "items", "starts", "lengths"), "*i32"),
                "log2_scale": "fp32",
                "table_pages": "i32",
                **dict.fromkeys(strides, "i64"),
            },
            constexprs=_constexprs(tile, shape.shard_kv_heads, shape.group, page, window, shape.head_dim),
            divisible=frozenset((*rows, *strides)),
            launch=tile.launch,
            expect=Expect(tensor_cores=True, wide_loads_of=("q", "k_pages", "v_pages")),
            kind=shape.kind,
        )


def _constexprs(
    tile: AttentionConfig, kv_heads: int, group: int, page: int, window: int | None, dim: int
) -> dict[str, Any]:
    return {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "PAGE": page,
        "WINDOW": check_window(window),
        "D": dim,
        "BLOCK_D": triton.next_power_of_2(dim),
        "ROWS": tile.rows,
        "TILE": tile.keys,
    }


__all__ = ["PrefillPlan", "builds", "paged_prefill"]

"""Decode attention over paged keys and values: one new token a row.

The group of query heads that shares a KV head is packed into the rows of one block, so keys and values are read once
for all of them; a persistent grid walks the plan's splits, so one CUDA graph serves every mix of lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorry_kernels.aot.build import Build, Expect, ModelShape
from lorry_kernels.ops.attention_shape import (
    LANE,
    SPLIT_TOKENS,
    check_group,
    check_numbers,
    check_pages,
    check_rows,
    check_window,
    decode_tile,
    log2_scale,
    stride,
)
from lorry_kernels.ops.attention_tile import attend, pages_of
from lorry_kernels.ops.checks import need, need_tensor
from lorry_kernels.ops.decode_plan import DecodePlan, split_count
from lorry_kernels.ops.launch import Launch, architecture, programs
from lorry_kernels.tuning import AttentionConfig

_MERGE_PARTS = 16
_MERGE_LAUNCH = Launch(4, 2)


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """Results of splits before they are merged; layers and windows of a step share one. partial ``[capacity, H, D]``
    float32 weighted sums of values, peaks ``[capacity, H, 2]`` float32 (peak in powers of two, sum of weights)."""

    partial: Tensor
    peaks: Tensor

    def __post_init__(self) -> None:
        """Once a workspace here, not once a layer. Raises TypeError or ValueError by the field's name."""
        device, kind = self.partial.device, torch.float32
        capacity, heads, _ = need_tensor(
            "partial", self.partial, dtype=kind, shape=(None,) * 3, contiguous=True, aligned=LANE
        ).shape
        need_tensor(
            "peaks", self.peaks, dtype=kind, shape=(capacity, heads, 2), device=device, contiguous=True, aligned=LANE
        )

    @classmethod
    def allocate(cls, capacity: int, heads: int, head_dim: int, *, device: torch.device) -> DecodeWorkspace:
        """capacity: that of the largest plan it is used with."""
        need(capacity > 0, "capacity", f"is {capacity}, must be above 0")
        return cls(
            partial=torch.empty(capacity, heads, head_dim, dtype=torch.float32, device=device),
            peaks=torch.empty(capacity, heads, 2, dtype=torch.float32, device=device),
        )


@triton.jit(do_not_specialize=["table", "item", "items", "parts", "table_pages"])
def _paged_decode(
    q: tl.tensor,
    k_pages: tl.tensor,
    v_pages: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    peaks: tl.tensor,
    table: tl.tensor,
    item: tl.tensor,
    items: tl.tensor,
    parts: tl.tensor,
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
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    member = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_D)
    used = (member < GROUP)[:, None] & (column < D)[None, :]
    work = tl.load(items) * KV_HEADS
    for unit in range(tl.program_id(0), work, tl.num_programs(0)):
        at = unit // KV_HEADS
        kv_head = unit % KV_HEADS
        row = tl.load(item + at * 2).to(tl.int64)
        split = tl.load(item + at * 2 + 1)
        splits = tl.load(parts + row * 3 + 1)
        length = tl.load(parts + row * 3 + 2)
        low = tl.maximum(length - WINDOW, 0) if WINDOW else 0
        low = tl.maximum(split * SPLIT, low)
        end = tl.minimum((split + 1) * SPLIT, length)  # Of split -1: 0.
        head = (kv_head * GROUP + member).to(tl.int64)
        queries = tl.load(
            q + row * stride_q_row + (head * stride_q_head)[:, None] + column[None, :], mask=used, other=0.0
        )
        acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
        peak = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        first = tl.zeros([ROWS], tl.int32) + low
        last = tl.zeros([ROWS], tl.int32) + end - 1
        table_row = table + row * table_pages
        begin = low // TILE * TILE
        pages = pages_of(table_row, begin, low, end, PAGE, TILE)
        for start in range(begin, end, TILE):
            acc, peak, total, pages = attend(
                queries,
                (acc, peak, total, pages),
                k_pages + kv_head * stride_kv_head,
                v_pages + kv_head * stride_kv_head,
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
        if splits <= 1:
            # A row without keys gets zeros, a fault NaN.
            result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
            result = tl.where(splits < 0, float("nan"), result)
            tl.store(
                out + row * stride_out_row + (head * stride_out_head)[:, None] + column[None, :],
                result.to(out.dtype.element_ty),
                mask=used,
            )
        else:
            line = (tl.zeros([ROWS], tl.int64) + at) * (KV_HEADS * GROUP) + head
            tl.store(partial + (line * D)[:, None] + column[None, :], acc, mask=used)
            tl.store(peaks + line * 2, peak * log2_scale, mask=member < GROUP)
            tl.store(peaks + line * 2 + 1, total, mask=member < GROUP)


@triton.jit(do_not_specialize=["parts"])
def _merge_splits(
    out: tl.tensor,
    partial: tl.tensor,
    peaks: tl.tensor,
    parts: tl.tensor,
    stride_out_row: tl.int64,
    stride_out_head: tl.int64,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    splits = tl.load(parts + row * 3 + 1)
    if splits > 1:
        behind = tl.load(parts + row * 3).to(tl.int64)
        column = tl.arange(0, BLOCK_D)
        acc = tl.zeros([BLOCK_D], tl.float32)
        peak = tl.full([1], -float("inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        for start in range(0, splits, PARTS):
            part = start + tl.arange(0, PARTS)
            there = part < splits
            line = tl.where(part == 0, row, behind + part - 1) * HEADS + head
            part_peak = tl.load(peaks + line * 2, mask=there, other=-float("inf"))
            part_total = tl.load(peaks + line * 2 + 1, mask=there, other=0.0)
            sums = tl.load(
                partial + (line * D)[:, None] + column[None, :],
                mask=there[:, None] & (column < D)[None, :],
                other=0.0,
            )
            high = tl.maximum(peak, tl.max(part_peak, 0))
            weight = tl.math.exp2(part_peak - high)
            shrink = tl.math.exp2(peak - high)
            total = total * shrink + tl.sum(part_total * weight, 0)
            acc = acc * shrink + tl.sum(sums * weight[:, None], 0)
            peak = high
        result = acc / total
        tl.store(
            out + row * stride_out_row + head * stride_out_head + column,
            result.to(out.dtype.element_ty),
            mask=column < D,
        )


def paged_decode(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    plan: DecodePlan,
    workspace: DecodeWorkspace,
    *,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of one query token a row to the keys of its pages: as many as ``plan`` was filled with, the last
    ``plan.window`` of them where there is a window. Its own key is in the pages already.

    q ``[B, H, D]``, rows may be strided; pages ``[P, KVH, page, D]`` of q's dtype (bfloat16, float16; float32 to test),
    strided views of an arena of any size; table ``[B, max_pages]`` int32. H is 1 to 16 whole times KVH. ``scale`` of
    the scores, 1 / sqrt(D) by default. Returns ``[B, H, D]``, ``out`` where given.

    A row's result is the same bits alone and in any batch, at any place of its pages: splits are of a fixed size and
    merged in their order, sums are float32. A row of length 0 gets zeros, a fault of the plan NaN. Reads no key before
    the window, none behind the end, and no page beyond those. Two launches (one where a full table is one split), no
    host sync, capturable in a CUDA graph. Raises TypeError or ValueError by the argument's name.
    """
    keys, values = check_pages(k_pages, v_pages)
    _, kv_heads, page, dim = keys.shape
    q = check_rows("q", q, keys, dim, None, plan.rows)
    rows, heads = q.shape[0], q.shape[1]
    group = check_group(heads, kv_heads)
    table = check_numbers("table", table, (rows, plan.max_pages), q.device)
    need(plan.page_tokens == page, "plan", f"is for pages of {plan.page_tokens} tokens, k_pages has {page}")
    check_numbers("plan.item", plan.item, (None, 2), q.device)
    need_tensor("workspace.partial", workspace.partial, shape=(None, heads, dim), device=q.device)
    need(
        workspace.partial.shape[0] >= plan.capacity or plan.max_splits == 1,
        "workspace",
        f"has room for {workspace.partial.shape[0]} splits, the plan has up to {plan.capacity}; allocate that many",
    )
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    out = check_rows("out", out, q, dim, heads, rows)
    tile = decode_tile(architecture(q.device), dim)
    factor = log2_scale(scale, dim)
    outward = (stride(out, 0), stride(out, 1))
    _paged_decode[(min(programs(q.device, tile.occupancy), plan.capacity * kv_heads),)](
        q,
        keys,
        values,
        out,
        workspace.partial,
        workspace.peaks,
        table,
        plan.item,
        plan.items,
        plan.parts,
        factor,
        plan.max_pages,
        stride(q, 0),
        stride(q, 1),
        *outward,
        stride(keys, 0),
        stride(keys, 1),
        stride(keys, 2),
        **_constexprs(tile, kv_heads, group, page, plan.split_tokens, plan.window, dim),
        **tile.launch.options,
    )
    if plan.max_splits > 1:
        _merge_splits[(rows, heads)](
            out,
            workspace.partial,
            workspace.peaks,
            plan.parts,
            *outward,
            **_merge_constexprs(heads, dim),
            **_MERGE_LAUNCH.options,
        )
    return out


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """What ``paged_decode`` launches for a model on one shard."""
    tile = decode_tile(arch, shape.head_dim)
    strides = [name for name in _paged_decode.arg_names if name.startswith("stride_")]
    rows = ("q", "k_pages", "v_pages", "out")
    sums = ("partial", "peaks")
    for page, window in product(shape.page_tokens, shape.windows):
        yield Build(
            op="paged_decode",
            kernel=_paged_decode,
            signature={
                **dict.fromkeys(rows, f"*{shape.dtype}"),
                **dict.fromkeys(sums, "*fp32"),
                **dict.fromkeys(("table", "item", "items", "parts"), "*i32"),
                "log2_scale": "fp32",
                "table_pages": "i32",
                **dict.fromkeys(strides, "i64"),
            },
            constexprs=_constexprs(tile, shape.shard_kv_heads, shape.group, page, SPLIT_TOKENS, window, shape.head_dim),
            divisible=frozenset((*rows, *sums, *strides)),
            launch=tile.launch,
            expect=Expect(tensor_cores=True, wide_loads_of=("q", "k_pages", "v_pages")),
            kind=shape.kind,
        )
    outward = ("stride_out_row", "stride_out_head")
    yield Build(
        op="merge_splits",
        kernel=_merge_splits,
        signature={
            "out": f"*{shape.dtype}",
            **dict.fromkeys(sums, "*fp32"),
            "parts": "*i32",
            **dict.fromkeys(outward, "i64"),
        },
        constexprs=_merge_constexprs(shape.shard_heads, shape.head_dim),
        divisible=frozenset(("out", *sums, *outward)),
        launch=_MERGE_LAUNCH,
        expect=Expect(tensor_cores=False, wide_loads_of=("partial",)),
        kind=shape.kind,
    )


def _constexprs(
    tile: AttentionConfig, kv_heads: int, group: int, page: int, split_tokens: int, window: int | None, dim: int
) -> dict[str, Any]:
    return {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "PAGE": page,
        "SPLIT": split_tokens,
        "WINDOW": check_window(window),
        "D": dim,
        "BLOCK_D": triton.next_power_of_2(dim),
        "ROWS": tile.rows,
        "TILE": tile.keys,
    }


def _merge_constexprs(heads: int, dim: int) -> dict[str, Any]:
    return {"HEADS": heads, "D": dim, "BLOCK_D": triton.next_power_of_2(dim), "PARTS": _MERGE_PARTS}


__all__ = ["DecodePlan", "DecodeWorkspace", "builds", "paged_decode", "split_count"]

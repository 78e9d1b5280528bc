"""Embeddings of any mix of adapters: whole matrices, LoRA by id, and single rows that stand for ids.

In this order: ``embed`` (the base's row, or the slot's own matrix's), ``embedding_planes`` and ``expand`` (LoRA: what
a shrink computes from x is read from A by id), ``replace_rows``. An id that nobody has a row for becomes NaN, never
another id's row, so that its sequence ends. LoRA of an embedding is Hu et al.'s (2021) with x one-hot; tiles of one
adapter are Punica's SGMV (Chen et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorry_kernels.aot.build import Build, Expect, ModelShape
from lorry_kernels.ops.checks import ACTIVATION_DTYPES, need_tensor
from lorry_kernels.ops.launch import Launch, cdiv, programs
from lorry_kernels.ops.lora_tiles import ALIGNMENT, PHASES, RANKS, block_m
from lorry_kernels.ops.routing import Routing
from lorry_kernels.ops.shrink import check_arena, check_offsets, check_planes, check_vectors

_BLOCK = 1024
_LAUNCH = Launch(2, 1)
_EMBED_ANY = ("ids", "slot", "offset", "limit", "rows", "slots")
_PLANES_ANY = ("ids", "a_offset", "limit", "order", "tile", "tiles", "blocks", "stride_slot")
_REPLACE_ANY = ("ids", "slot", "row_of", "row_of_at", "rows_at", "limit", "slots")


@dataclass(frozen=True, slots=True)
class OwnMatrices:
    """``arena`` ``[E]`` of the embedding's dtype; ``offset`` int64 ``[slots]``, multiples of 128 bytes, where a
    slot's own ``[V', H]`` begins, -1 for none; ``limit`` int64 ``[slots]``, its V'."""

    arena: Tensor
    offset: Tensor
    limit: Tensor


@dataclass(frozen=True, slots=True)
class OwnRows:
    """``row_of`` int32 ``[I]``, an arena of maps: from ``row_of_at[slot]`` on, ``limit[slot]`` entries say which
    row stands for an id, -1 for none. ``vectors`` float32 ``[F]``: the slot's rows of H elements lie from
    ``rows_at[slot]`` on. All tables int64 ``[slots]``; ``row_of_at`` is -1 where the slot has none."""

    row_of: Tensor
    row_of_at: Tensor
    limit: Tensor
    vectors: Tensor
    rows_at: Tensor


@triton.jit(do_not_specialize=_EMBED_ANY)
def _embed(
    ids: tl.tensor,
    weight: tl.tensor,
    arena: tl.tensor,
    out: tl.tensor,
    slot: tl.tensor,
    offset: tl.tensor,
    limit: tl.tensor,
    rows: tl.tensor,
    slots: tl.tensor,
    hidden: tl.tensor,
    stride_out: tl.int64,
    BLOCK: tl.constexpr,
    OWN: tl.constexpr,
    ALIGN: tl.constexpr,
) -> None:
    token = tl.program_id(0)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids + token).to(tl.int64)
    at = tl.full([], -1, tl.int64)
    known = rows.to(tl.int64)
    if OWN:
        mine = tl.load(slot + token)
        if (mine >= 0) & (mine < slots):
            at = tl.load(offset + mine)
            if at >= 0:
                known = tl.load(limit + mine)
    inside = h < hidden
    found = (row >= 0) & (row < known)
    nothing = float("nan")
    if at >= 0:
        begin = at // ALIGN * ALIGN + row * hidden
        value = tl.load(arena + begin + h, mask=inside & found, other=nothing)
    else:
        value = tl.load(weight + row * hidden + h, mask=inside & found, other=nothing)
    tl.store(out + token.to(tl.int64) * stride_out + h, value, mask=inside)


@triton.jit(do_not_specialize=_PLANES_ANY)
def _embedding_planes(
    ids: tl.tensor,
    arena: tl.tensor,
    a_offset: tl.tensor,
    limit: tl.tensor,
    order: tl.tensor,
    tile: tl.tensor,
    tiles: tl.tensor,
    planes: tl.tensor,
    blocks: tl.tensor,
    stride_slot: tl.int64,
    stride_place: tl.int64,
    BM: tl.constexpr,
    ALIGN: tl.constexpr,
) -> None:
    total = tl.load(tiles) * blocks
    for work in range(tl.program_id(0), total, tl.num_programs(0)):
        tile_at = tile + (work // blocks) * 3
        block = work % blocks
        slot = tl.load(tile_at).to(tl.int64)
        at = tl.multiple_of(tl.load(a_offset + slot * stride_slot + block), ALIGN)
        if at >= 0:
            start = tl.load(tile_at + 1)
            m = tl.arange(0, BM)
            r = tl.arange(0, 16)
            real = m < tl.load(tile_at + 2)
            row = tl.load(order + start + m, mask=real, other=0).to(tl.int64)
            name = tl.load(ids + row, mask=real, other=-1).to(tl.int64)
            found = real & (name >= 0) & (name < tl.load(limit + slot))
            value = tl.load(arena + at + name[:, None] * 16 + r[None, :], mask=found[:, None], other=float("nan"))
            place = (start + m).to(tl.int64)[:, None] * stride_place + block * 16 + r[None, :]
            tl.store(planes + place, value.to(tl.float32), mask=real[:, None])


@triton.jit(do_not_specialize=_REPLACE_ANY)
def _replace_rows(
    ids: tl.tensor,
    y: tl.tensor,
    row_of: tl.tensor,
    vectors: tl.tensor,
    slot: tl.tensor,
    row_of_at: tl.tensor,
    rows_at: tl.tensor,
    limit: tl.tensor,
    slots: tl.tensor,
    hidden: tl.tensor,
    stride_y: tl.int64,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0)
    name = tl.load(ids + token).to(tl.int64)
    own = tl.load(slot + token)
    row = tl.full([], -1, tl.int32)
    if (own >= 0) & (own < slots):
        at = tl.load(row_of_at + own)
        if (at >= 0) & (name >= 0) & (name < tl.load(limit + own)):
            row = tl.load(row_of + at + name)
    if row >= 0:
        h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        begin = tl.load(rows_at + own) // 32 * 32 + row.to(tl.int64) * hidden
        value = tl.load(vectors + begin + h, mask=h < hidden, other=0.0)
        tl.store(y + token.to(tl.int64) * stride_y + h, value.to(y.dtype.element_ty), mask=h < hidden)


def embed(ids: Tensor, weight: Tensor, out: Tensor, routing: Routing, own: OwnMatrices | None = None) -> None:
    """out[t] = row ids[t] of the slot's own matrix, of ``weight`` where it has none; NaN for an id beyond it.

    ids int64 ``[T]``, weight ``[V, H]`` contiguous, out ``[T, H]`` of its dtype (rows may be strided). Copies bits:
    a row depends on its id and its slot alone, whatever the batch. Raises TypeError or ValueError by the argument's
    name.
    """
    device, t, hidden = routing.order.device, routing.tokens, weight.shape[-1]
    need_tensor("ids", ids, dtype=torch.int64, shape=(t,), device=device, contiguous=True)
    need_tensor("weight", weight, dtype=ACTIVATION_DTYPES, shape=(None, None), device=device, contiguous=True)
    need_tensor("out", out, dtype=weight.dtype, shape=(t, hidden), device=device, rows=True)
    if own is not None:
        check_arena(own.arena, weight.dtype, device)
        _check_slots("offset", own.offset, routing)
        _check_slots("limit", own.limit, routing)
    if t == 0:
        return
    taken = OwnMatrices(weight, ids, ids) if own is None else own  # not read where there are none
    _embed[(t, cdiv(hidden, _BLOCK))](
        ids,
        weight,
        taken.arena,
        out,
        routing.slot,
        taken.offset,
        taken.limit,
        weight.shape[0],
        routing.slots,
        hidden,
        out.stride(0),
        **_embed_constexprs(own is not None, weight.dtype.itemsize),
        **_LAUNCH.options,
    )


def embedding_planes(
    ids: Tensor, arena: Tensor, a_offset: Tensor, limit: Tensor, routing: Routing, planes: Tensor
) -> None:
    """planes[0, 0, i] = row ids[order[i]] of the slot's A, as if x were the id's one-hot vector; NaN for an id that
    A has no row for. Then ``expand`` with ``split`` 1.

    ids int64 ``[T]``; arena ``[E]`` of chunks ``[limit[slot], 16]``; a_offset int64 ``[slots, 1, blocks]``, -1 from a
    slot's end on; limit int64 ``[slots]``; planes float32 ``[1, 1, T, blocks * 16]``. A token's plane depends on its
    id and its slot alone, bit for bit, whatever the batch. Raises TypeError or ValueError by the argument's name.
    """
    device, t = routing.order.device, routing.tokens
    need_tensor("ids", ids, dtype=torch.int64, shape=(t,), device=device, contiguous=True)
    need_tensor("arena", arena, dtype=ACTIVATION_DTYPES, device=device)
    check_arena(arena, arena.dtype, device)
    need_tensor("a_offset", a_offset, dtype=torch.int64, shape=(routing.slots, 1, None), device=device)
    blocks = a_offset.shape[2]
    check_offsets("a_offset", a_offset, routing.slots, 1, blocks, device)
    _check_slots("limit", limit, routing)
    check_planes(planes, 1, 1, t, blocks * RANKS, device)
    if t == 0:
        return
    _embedding_planes[(min(programs(device, 4), routing.capacity * blocks),)](
        ids,
        arena,
        a_offset,
        limit,
        routing.order,
        routing.tile,
        routing.tiles,
        planes,
        blocks,
        a_offset.stride(0),
        blocks * RANKS,
        **_planes_constexprs(routing.tile_rows, arena.dtype.itemsize),
        **_LAUNCH.options,
    )


def replace_rows(y: Tensor, ids: Tensor, routing: Routing, own: OwnRows) -> None:
    """y[t] = the row that the slot has for ids[t], rounded; other rows are not touched.

    y ``[T, H]`` (rows may be strided), ids int64 ``[T]``. Launch it only where a slot of the batch has rows. A row
    depends on its id and its slot alone, bit for bit, whatever the batch. Raises TypeError or ValueError by the
    argument's name.
    """
    device, t = routing.order.device, routing.tokens
    need_tensor("y", y, dtype=ACTIVATION_DTYPES, shape=(t, None), device=device, rows=True)
    need_tensor("ids", ids, dtype=torch.int64, shape=(t,), device=device, contiguous=True)
    need_tensor("row_of", own.row_of, dtype=torch.int32, shape=(None,), device=device, contiguous=True)
    check_vectors(own.vectors, device)
    for name, table in (("row_of_at", own.row_of_at), ("rows_at", own.rows_at), ("limit", own.limit)):
        _check_slots(name, table, routing)
    if t == 0:
        return
    _replace_rows[(t, cdiv(y.shape[1], _BLOCK))](
        ids,
        y,
        own.row_of,
        own.vectors,
        routing.slot,
        own.row_of_at,
        own.rows_at,
        own.limit,
        routing.slots,
        y.shape[1],
        y.stride(0),
        BLOCK=_BLOCK,
        **_LAUNCH.options,
    )


def _check_slots(argument: str, table: Tensor, routing: Routing) -> None:
    need_tensor(
        argument, table, dtype=torch.int64, shape=(routing.slots,), device=routing.order.device, contiguous=True
    )


def _embed_constexprs(own: bool, itemsize: int) -> dict[str, Any]:
    return {"BLOCK": _BLOCK, "OWN": int(own), "ALIGN": ALIGNMENT // itemsize}


def _planes_constexprs(tile_rows: int, itemsize: int) -> dict[str, Any]:
    return {"BM": tile_rows, "ALIGN": ALIGNMENT // itemsize}


_ACTIVATIONS = ("weight", "arena", "out", "y")
_KINDS = {
    **dict.fromkeys(("planes", "vectors"), "*fp32"),
    **dict.fromkeys(("ids", "offset", "limit", "a_offset", "row_of_at", "rows_at"), "*i64"),
    **dict.fromkeys(("slot", "order", "tile", "tiles", "row_of"), "*i32"),
    **dict.fromkeys(("rows", "slots", "hidden", "blocks"), "i32"),
    **dict.fromkeys(("stride_out", "stride_y", "stride_slot", "stride_place"), "i64"),
}


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """A few for all shapes of one type."""
    del arch
    if not shape.hidden:
        return
    for own in (False, True):
        wide = ("weight", "out", "arena") if own else ("weight", "out")
        yield _build(shape, "embed", _embed, _embed_constexprs(own, 2), _EMBED_ANY, wide)
    for phase in PHASES:
        constexprs = _planes_constexprs(block_m(phase), 2)
        yield _build(shape, "embedding_planes", _embedding_planes, constexprs, _PLANES_ANY, ())
    yield _build(shape, "replace_rows", _replace_rows, {"BLOCK": _BLOCK}, _REPLACE_ANY, ("vectors",))


def _build(
    shape: ModelShape,
    op: str,
    kernel: Any,
    constexprs: dict[str, Any],
    free: tuple[str, ...],
    wide: tuple[str, ...],
) -> Build:
    kinds = {**_KINDS, **dict.fromkeys(_ACTIVATIONS, f"*{shape.dtype}")}
    signature = {name: kinds[name] for name in kernel.arg_names if name not in constexprs}
    divisible = frozenset(signature) - set(free)
    return Build(op, kernel, signature, constexprs, divisible, _LAUNCH, Expect(False, wide), shape.kind)


__all__ = ["OwnMatrices", "OwnRows", "builds", "embed", "embedding_planes", "replace_rows"]

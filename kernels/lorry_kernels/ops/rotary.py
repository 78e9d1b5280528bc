"""Rotary position embedding (Su et al., RoFormer, 2021) of q and k, in the half-split layout of Hugging Face weights,
with what stands beside it in a layer: the norm of each head (as Qwen3 has it) before, the write into KV pages after."""

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
from lorry_kernels.ops.checks import ACTIVATION_DTYPES, need, need_tensor
from lorry_kernels.ops.launch import Launch, cdiv
from lorry_kernels.ops.own_weights import OwnWeights, check_own, own_or, place_of

HEADS = 8
"""Heads of one token that a program turns."""
MAX_DIM = 512


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """``q_weight`` and ``k_weight`` ``[D]``, q's type or float32. ``q_own`` and ``k_own``: tokens with a weight of
    their adapter's, both or neither, with one ``slot`` and one ``vectors``."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float
    q_own: OwnWeights | None = None
    k_own: OwnWeights | None = None


@dataclass(frozen=True, slots=True)
class Pages:
    """Where new keys and values go: values ``[T, KVH, D]``, pages ``[P, KVH, page, D]`` (D contiguous), ``slot`` int64
    ``[T]``: place ``slot % page`` of page ``slot // page``; a row whose slot is below 0, or beyond the pages, writes
    nothing."""

    v: Tensor
    k_pages: Tensor
    v_pages: Tensor
    slot: Tensor


@triton.jit
def _turned(
    lower: tl.tensor, upper: tl.tensor, cos: tl.tensor, sin: tl.tensor, weight_ptr: tl.tensor, vectors_ptr: tl.tensor,
    place: tl.tensor, eps: tl.tensor, column: tl.tensor, real: tl.tensor, flat: tl.tensor,
    D: tl.constexpr, NORM: tl.constexpr, OWN: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Both halves ``[HEADS, HALF]`` float32 of some heads of one token, normed and turned."""
    if NORM:
        rate = tl.rsqrt((tl.sum(lower * lower, 1) + tl.sum(upper * upper, 1)) / D + eps)[:, None]
        first = tl.load(weight_ptr + flat, mask=real[None, :], other=0.0).to(tl.float32)
        second = tl.load(weight_ptr + D // 2 + flat, mask=real[None, :], other=0.0).to(tl.float32)
        if OWN:
            first = own_or(vectors_ptr, place, column, real, first)
            second = own_or(vectors_ptr, place, D // 2 + column, real, second)
        lower = lower * rate * first
        upper = upper * rate * second
    return lower * cos - upper * sin, upper * cos + lower * sin


@triton.jit(do_not_specialize=["slots", "places", "positions", "position_ptr", "slot_ptr"])
def _rotary_kernel(
    q_ptr: tl.tensor, q_row: tl.tensor, q_head: tl.tensor, k_ptr: tl.tensor, k_row: tl.tensor, k_head: tl.tensor,
    v_ptr: tl.tensor, v_row: tl.tensor, v_head: tl.tensor, position_ptr: tl.tensor, cos_ptr: tl.tensor,
    sin_ptr: tl.tensor, table_row: tl.tensor, positions: tl.tensor, k_pages_ptr: tl.tensor, v_pages_ptr: tl.tensor,
    page_row: tl.int64, page_head: tl.tensor, page_place: tl.tensor, slot_ptr: tl.tensor, places: tl.tensor,
    q_weight_ptr: tl.tensor, k_weight_ptr: tl.tensor, eps: tl.tensor, vectors_ptr: tl.tensor,
    own_slot_ptr: tl.tensor, q_offset_ptr: tl.tensor, q_offset_stride: tl.tensor, k_offset_ptr: tl.tensor,
    k_offset_stride: tl.tensor, slots: tl.tensor,
    H: tl.constexpr, KVH: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    HEADS: tl.constexpr, PAGE: tl.constexpr, NORM: tl.constexpr, OWN: tl.constexpr,
) -> None:  # fmt: skip
    """One token's HEADS heads of q, or of k and v. PAGE 0: k is turned in place too, v is not there."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = tl.arange(0, HALF)
    real = column < D // 2
    position = tl.load(position_ptr + token)
    known = real & (position >= 0) & (position < positions)
    # What all heads share is read as a tile of the heads' shape, so that it lies in registers as they do.
    flat = tl.zeros([HEADS], tl.int32)[:, None] + column[None, :]
    cos = tl.load(cos_ptr + position * table_row + flat, mask=known[None, :], other=0.0)
    sin = tl.load(sin_ptr + position * table_row + flat, mask=known[None, :], other=0.0)
    place = tl.full([HEADS], -1, tl.int64)
    one = tl.zeros([HEADS], tl.int64) + token
    Q_PARTS: tl.constexpr = (H + HEADS - 1) // HEADS
    if part < Q_PARTS:
        head = part * HEADS + tl.arange(0, HEADS)
        kept = (head < H)[:, None] & real[None, :]
        at = q_ptr + token * q_row + head.to(tl.int64)[:, None] * q_head + column[None, :]
        lower = tl.load(at, mask=kept, other=0.0).to(tl.float32)
        upper = tl.load(at + D // 2, mask=kept, other=0.0).to(tl.float32)
        if OWN:
            place = place_of(own_slot_ptr, q_offset_ptr, q_offset_stride, slots, one, one >= 0)
        lower, upper = _turned(
            lower, upper, cos, sin, q_weight_ptr, vectors_ptr, place, eps, column, real, flat, D, NORM, OWN
        )  # fmt: skip
        tl.store(at, lower.to(q_ptr.dtype.element_ty), mask=kept)
        tl.store(at + D // 2, upper.to(q_ptr.dtype.element_ty), mask=kept)
    else:
        head = (part - Q_PARTS) * HEADS + tl.arange(0, HEADS)
        heads = head.to(tl.int64)[:, None]
        kept = (head < KVH)[:, None] & real[None, :]
        at = k_ptr + token * k_row + heads * k_head + column[None, :]
        lower = tl.load(at, mask=kept, other=0.0).to(tl.float32)
        upper = tl.load(at + D // 2, mask=kept, other=0.0).to(tl.float32)
        if OWN:
            place = place_of(own_slot_ptr, k_offset_ptr, k_offset_stride, slots, one, one >= 0)
        lower, upper = _turned(
            lower, upper, cos, sin, k_weight_ptr, vectors_ptr, place, eps, column, real, flat, D, NORM, OWN
        )  # fmt: skip
        if PAGE == 0:
            tl.store(at, lower.to(k_ptr.dtype.element_ty), mask=kept)
            tl.store(at + D // 2, upper.to(k_ptr.dtype.element_ty), mask=kept)
        else:
            slot = tl.load(slot_ptr + token)
            if (slot >= 0) & (slot < places):
                into = (slot // PAGE) * page_row + (slot % PAGE) * page_place + heads * page_head
                key = k_pages_ptr + into + column[None, :]
                tl.store(key, lower.to(k_pages_ptr.dtype.element_ty), mask=kept)
                tl.store(key + D // 2, upper.to(k_pages_ptr.dtype.element_ty), mask=kept)
                whole = tl.arange(0, BLOCK)
                both = (head < KVH)[:, None] & (whole < D)[None, :]
                value = tl.load(v_ptr + token * v_row + heads * v_head + whole[None, :], mask=both, other=0.0)
                tl.store(v_pages_ptr + into + whole[None, :], value.to(v_pages_ptr.dtype.element_ty), mask=both)


def rotary(
    q: Tensor,
    k: Tensor,
    position: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    norms: HeadNorms | None = None,
    pages: Pages | None = None,
) -> None:
    """Turns each head of q in place by its token's position. k too; or, with ``pages``, writes k turned, and v as it
    is, into their pages and leaves k as it was. ``norms``: heads are normed first.

    q ``[T, H, D]``, k ``[T, KVH, D]``, v of one type, rows and heads may be strided (slices of one qkv buffer);
    position int64 ``[T]``; cos and sin float32 ``[positions, D / 2]``, rows may be strided (halves of what
    ``rotary_tables`` makes: ``cos[:, : D // 2]``, ``sin[:, D // 2 :]``). A position beyond the tables turns to zeros.
    float32 inside, one rounding. A token's result depends on the token alone, bit for bit. Slots of one call are
    distinct. Capturable in a CUDA graph. Raises TypeError or ValueError by the argument's name.
    """
    need_tensor("q", q, dtype=ACTIVATION_DTYPES, shape=(None, None, None), rows=True)
    tokens, heads, dim = q.shape
    device = q.device
    need(dim % 2 == 0 and 2 <= dim <= MAX_DIM, "q", f"has heads of {dim}, must be even and at most {MAX_DIM}; pad them")
    need_tensor("k", k, dtype=q.dtype, shape=(tokens, None, dim), device=device, rows=True)
    kv_heads = k.shape[1]
    need_tensor("position", position, dtype=torch.int64, shape=(tokens,), device=device, contiguous=True)
    need_tensor("cos", cos, dtype=torch.float32, shape=(None, dim // 2), device=device, rows=True)
    need_tensor("sin", sin, dtype=torch.float32, shape=cos.shape, device=device, rows=True)
    need(
        cos.stride(0) == sin.stride(0),
        "sin",
        f"has rows {sin.stride(0)} apart, must be as cos', {cos.stride(0)}; slice both alike",
    )
    if norms is not None:
        _check_norms(norms, q)
    if pages is not None:
        _check_pages(pages, k)
    if not tokens:
        return
    page = 0 if pages is None else pages.k_pages.shape[2]
    own = None if norms is None else norms.q_own
    constexprs = _constexprs(heads, kv_heads, dim, page, norms is not None, own is not None)
    _rotary_kernel[(tokens, cdiv(heads, HEADS) + cdiv(kv_heads, HEADS))](
        q, q.stride(0), q.stride(1), k, k.stride(0), k.stride(1),
        *_page_arguments(pages, k, position, cos, sin),
        *_norm_arguments(norms, q),
        **constexprs, **_launch(dim).options,
    )  # fmt: skip


def _page_arguments(pages: Pages | None, k: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> tuple[Any, ...]:
    turn = (position, cos, sin, cos.stride(0), cos.shape[0])
    if pages is None:
        return (k, 0, 0, *turn, k, k, 0, 0, 0, position, 0)
    v, k_pages = pages.v, pages.k_pages
    strides = k_pages.stride()[:3]
    places = k_pages.shape[0] * k_pages.shape[2]
    return (v, v.stride(0), v.stride(1), *turn, k_pages, pages.v_pages, *strides, pages.slot, places)


def _norm_arguments(norms: HeadNorms | None, q: Tensor) -> tuple[Any, ...]:
    if norms is None:
        return (q, q, 1.0, q, q, q, 0, q, 0, 0)
    given = (norms.q_weight, norms.k_weight, norms.eps)
    if norms.q_own is None or norms.k_own is None:
        return (*given, q, q, q, 0, q, 0, 0)
    first, second = norms.q_own, norms.k_own
    offsets = (first.offset, first.offset.stride(0), second.offset, second.offset.stride(0), len(first.offset))
    return (*given, first.vectors, first.slot, *offsets)


def _check_norms(norms: HeadNorms, q: Tensor) -> None:
    tokens, _, dim = q.shape
    for name, weight in (("norms.q_weight", norms.q_weight), ("norms.k_weight", norms.k_weight)):
        need_tensor(name, weight, dtype=(q.dtype, torch.float32), shape=(dim,), device=q.device, contiguous=True)
    need(norms.eps > 0, "norms.eps", f"is {norms.eps}, must be above 0; a head of zeros divides by its root")
    if norms.q_own is None and norms.k_own is None:
        return
    if norms.q_own is None or norms.k_own is None:
        name = "norms.q_own" if norms.q_own is None else "norms.k_own"
        raise ValueError(f"{name}: is None where the other is given; pass offsets of -1 where no slot has its own")
    check_own("norms.q_own", norms.q_own, tokens, q.device)
    check_own("norms.k_own", norms.k_own, tokens, q.device)
    same = norms.q_own.slot is norms.k_own.slot and norms.q_own.vectors is norms.k_own.vectors
    need(same, "norms.k_own", "has other slots or vectors than q_own, must have the same; pass one tensor to both")
    need(
        len(norms.k_own.offset) == len(norms.q_own.offset),
        "norms.k_own.offset",
        f"has {len(norms.k_own.offset)} slots, must have q_own's {len(norms.q_own.offset)}; pass both of one table",
    )


def _check_pages(pages: Pages, k: Tensor) -> None:
    tokens, kv_heads, dim = k.shape
    need_tensor("pages.v", pages.v, dtype=k.dtype, shape=k.shape, device=k.device, rows=True)
    shape = (None, kv_heads, None, dim)
    need_tensor("pages.k_pages", pages.k_pages, dtype=ACTIVATION_DTYPES, shape=shape, device=k.device, rows=True)
    need_tensor(
        "pages.v_pages",
        pages.v_pages,
        dtype=pages.k_pages.dtype,
        shape=pages.k_pages.shape,
        device=k.device,
        rows=True,
    )
    need(
        pages.k_pages.stride() == pages.v_pages.stride(),
        "pages.v_pages",
        f"has strides {list(pages.v_pages.stride())}, must be k_pages' {list(pages.k_pages.stride())}; take "
        "both of one arena",
    )
    need_tensor("pages.slot", pages.slot, dtype=torch.int64, shape=(tokens,), device=k.device, contiguous=True)


def _constexprs(heads: int, kv_heads: int, dim: int, page: int, norm: bool, own: bool) -> dict[str, Any]:
    half, block = triton.next_power_of_2(dim // 2), triton.next_power_of_2(dim)
    shape = {"H": heads, "KVH": kv_heads, "D": dim, "HALF": half, "BLOCK": block, "HEADS": HEADS}
    return {**shape, "PAGE": page, "NORM": norm, "OWN": own}


def _launch(dim: int) -> Launch:
    """A thread holds eight elements of a half: 16 bytes."""
    return Launch(max(HEADS * triton.next_power_of_2(dim // 2) // 256, 1), 1)


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """With the write into pages: plain, or, of models that norm their heads, with the base's norms and adapters'."""
    integers = [name for name in _rotary_kernel.arg_names if name.endswith(("_row", "_head", "_stride", "_place"))]
    free = {"q_offset_stride", "k_offset_stride"}
    kind = f"*{shape.dtype}"
    wide = ["q_ptr", "k_ptr", "v_ptr", "k_pages_ptr", "v_pages_ptr"]
    tables = ["cos_ptr", "sin_ptr"]
    if (shape.head_dim // 2) % 16:
        # Rows of 40 numbers: of a stride Triton knows whether 16 divides it and no more, so they are read one by one.
        free.add("table_row")
        tables = []
    forms = ((True, False), (True, True)) if shape.qk_norm else ((False, False),)
    for page, (norm, own) in product(shape.page_tokens, forms):
        types = {
            **dict.fromkeys(["q_ptr", "k_ptr", "v_ptr", "k_pages_ptr", "v_pages_ptr"], kind),
            **dict.fromkeys(["q_weight_ptr", "k_weight_ptr"], kind),
            **dict.fromkeys(["position_ptr", "slot_ptr"], "*i64"),
            **dict.fromkeys(["cos_ptr", "sin_ptr"], "*fp32"),
            "vectors_ptr": "*fp32" if own else kind,
            "own_slot_ptr": "*i32" if own else kind,
            **dict.fromkeys(["q_offset_ptr", "k_offset_ptr"], "*i64" if own else kind),
            **dict.fromkeys([*integers, "positions", "places", "slots"], "i32"),
            "page_row": "i64",
            "eps": "fp32",
        }
        read = [*wide, *tables, *["q_weight_ptr", "k_weight_ptr"] * norm, *["vectors_ptr"] * own]
        constexprs = _constexprs(shape.shard_heads, shape.shard_kv_heads, shape.head_dim, page, norm, own)
        yield Build(
            f"rotary{'.norm' * norm}{'.own' * own}",
            _rotary_kernel,
            {name: types[name] for name in _rotary_kernel.arg_names if name in types},
            constexprs,
            frozenset({*read, "cos_ptr", "sin_ptr", *integers} - free),
            _launch(shape.head_dim),
            Expect(wide_loads_of=tuple(read)),
            kind=shape.kind,
        )


__all__ = ["HeadNorms", "OwnWeights", "Pages", "builds", "rotary"]

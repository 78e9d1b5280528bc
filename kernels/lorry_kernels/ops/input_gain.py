"""IA3's input gain (Liu et al., 2022): x before the base's product, for rows whose slot has one; and, where slices of
one product have gains of their own, those rows' product of another x in place of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorry_kernels.aot.build import Build, Expect, ModelShape
from lorry_kernels.ops.checks import ACTIVATION_DTYPES, need, need_tensor
from lorry_kernels.ops.launch import Launch, cdiv
from lorry_kernels.ops.routing import Routing
from lorry_kernels.ops.shrink import check_vectors

_BLOCK = 1024
_LAUNCH = Launch(2, 1)
_ANY = ("slot", "offset", "stride_offset", "slots")


@triton.jit(do_not_specialize=_ANY)
def _input_gain(
    x: tl.tensor,
    out: tl.tensor,
    vectors: tl.tensor,
    slot: tl.tensor,
    offset: tl.tensor,
    features: tl.tensor,
    stride_x: tl.int64,
    stride_out: tl.int64,
    stride_offset: tl.int64,
    slots: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k < features
    own = tl.load(slot + row)
    at = tl.full([], -1, tl.int64)
    if (own >= 0) & (own < slots):
        at = tl.load(offset + own.to(tl.int64) * stride_offset)
    value = tl.load(x + row.to(tl.int64) * stride_x + k, mask=inside, other=0.0)
    if at >= 0:
        gain = tl.load(vectors + at // 32 * 32 + k, mask=inside, other=1.0)
        value = (value.to(tl.float32) * gain).to(x.dtype.element_ty)
    tl.store(out + row.to(tl.int64) * stride_out + k, value, mask=inside)


@triton.jit(do_not_specialize=_ANY)
def _take_gained(
    y: tl.tensor,
    gained: tl.tensor,
    slot: tl.tensor,
    offset: tl.tensor,
    features: tl.tensor,
    stride_y: tl.int64,
    stride_gained: tl.int64,
    stride_offset: tl.int64,
    slots: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    own = tl.load(slot + row)
    at = tl.full([], -1, tl.int64)
    if (own >= 0) & (own < slots):
        at = tl.load(offset + own.to(tl.int64) * stride_offset)
    if at >= 0:
        n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = n < features
        value = tl.load(gained + row.to(tl.int64) * stride_gained + n, mask=inside, other=0.0)
        tl.store(y + row.to(tl.int64) * stride_y + n, value, mask=inside)


def input_gain(x: Tensor, out: Tensor, vectors: Tensor, offset: Tensor, routing: Routing) -> None:
    """out[t] = gain of the token's slot * x[t], one rounding; x[t] bit for bit where the slot has none, and for the
    base.

    x and out ``[T, K]`` of one dtype (rows may be strided), apart: LoRA reads x as it is. vectors float32 ``[F]``;
    offset int64 ``[slots]`` (may be strided), places of K elements in it, multiples of 32, or -1. A site whose slices
    have gains of their own takes one call, one base product and one ``take_gained`` a slice. Launch it only where a
    slot of the batch has a gain. A row depends on x's row and its slot's gain alone, bit for bit, whatever the batch.
    Raises TypeError or ValueError by the argument's name.
    """
    device, t = routing.order.device, routing.tokens
    need_tensor("x", x, dtype=ACTIVATION_DTYPES, shape=(t, None), device=device, rows=True)
    need_tensor("out", out, dtype=x.dtype, shape=x.shape, device=device, rows=True)
    need(
        t == 0 or out.data_ptr() != x.data_ptr(), "out", "is x itself; pass a buffer of its own, LoRA reads x unchanged"
    )
    check_vectors(vectors, device)
    need_tensor("offset", offset, dtype=torch.int64, shape=(routing.slots,), device=device)
    if t == 0:
        return
    _input_gain[(t, cdiv(x.shape[1], _BLOCK))](
        x,
        out,
        vectors,
        routing.slot,
        offset,
        x.shape[1],
        x.stride(0),
        out.stride(0),
        offset.stride(0),
        routing.slots,
        **_constexprs(),
        **_LAUNCH.options,
    )


def take_gained(y: Tensor, gained: Tensor, offset: Tensor, routing: Routing) -> None:
    """y[t] = gained[t], bit for bit, for tokens whose slot has a gain; other rows are not touched.

    y and gained ``[T, N]`` of one dtype (rows may be strided: y is a slice's columns of the site's), apart; offset as
    ``input_gain`` takes it. Raises TypeError or ValueError by the argument's name.
    """
    device, t = routing.order.device, routing.tokens
    need_tensor("y", y, dtype=ACTIVATION_DTYPES, shape=(t, None), device=device, rows=True)
    need_tensor("gained", gained, dtype=y.dtype, shape=y.shape, device=device, rows=True)
    need_tensor("offset", offset, dtype=torch.int64, shape=(routing.slots,), device=device)
    if t == 0:
        return
    _take_gained[(t, cdiv(y.shape[1], _BLOCK))](
        y,
        gained,
        routing.slot,
        offset,
        y.shape[1],
        y.stride(0),
        gained.stride(0),
        offset.stride(0),
        routing.slots,
        **_constexprs(),
        **_LAUNCH.options,
    )


def _constexprs() -> dict[str, Any]:
    return {"BLOCK": _BLOCK}


_KINDS = {
    "vectors": "*fp32",
    "slot": "*i32",
    "offset": "*i64",
    **dict.fromkeys(("features", "slots"), "i32"),
    **dict.fromkeys(("stride_x", "stride_out", "stride_y", "stride_gained", "stride_offset"), "i64"),
}


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """Two for all shapes of one type."""
    del arch
    yield _build(shape, "input_gain", _input_gain, ("x", "out", "vectors"))
    yield _build(shape, "take_gained", _take_gained, ("gained", "y"))


def _build(shape: ModelShape, op: str, kernel: Any, wide: tuple[str, ...]) -> Build:
    constexprs = _constexprs()
    kinds = {**dict.fromkeys(("x", "out", "y", "gained"), f"*{shape.dtype}"), **_KINDS}
    signature = {name: kinds[name] for name in kernel.arg_names if name not in constexprs}
    divisible = frozenset(signature) - set(_ANY)
    return Build(op, kernel, signature, constexprs, divisible, _LAUNCH, Expect(wide_loads_of=wide), shape.kind)


__all__ = ["builds", "input_gain", "take_gained"]

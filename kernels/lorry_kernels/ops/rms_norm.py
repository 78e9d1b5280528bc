"""RMSNorm (Zhang, Sennrich, "Root mean square layer normalization", 2019), with the residual added first."""

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
from lorry_kernels.ops.own_weights import OwnWeights, check_own, own_or, place_of

MAX_FEATURES = 16384
"""A row is one tile."""
_TILE = 1024
"""Elements of a program where a row has fewer."""


@triton.jit(do_not_specialize=["rows", "slots", "slot_ptr", "offset_ptr"])
def _rms_norm_kernel(
    x_ptr: tl.tensor, x_row: tl.tensor, x_head: tl.tensor, residual_ptr: tl.tensor, residual_row: tl.tensor,
    out_ptr: tl.tensor, out_row: tl.tensor, out_head: tl.tensor, weight_ptr: tl.tensor, vectors_ptr: tl.tensor,
    slot_ptr: tl.tensor, offset_ptr: tl.tensor, offset_stride: tl.tensor, slots: tl.tensor, rows: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, RESIDUAL: tl.constexpr,
    OWN: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < rows
    column = tl.arange(0, BLOCK)
    kept = real[:, None] & (column < N)[None, :]
    token = (row // HEADS).to(tl.int64)
    head = (row % HEADS).to(tl.int64)
    x = tl.load(
        x_ptr + (token * x_row + head * x_head)[:, None] + column[None, :], mask=kept, other=0.0
    ).to(tl.float32)  # fmt: skip
    if RESIDUAL:
        at = residual_ptr + (token * residual_row)[:, None] + column[None, :]
        held = (x + tl.load(at, mask=kept, other=0.0).to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(at, held, mask=kept)
        x = held.to(tl.float32)
    rate = tl.rsqrt(tl.sum(x * x, 1) / N + eps)
    # As a tile of x's shape, so that it lies in registers as x does.
    weight = tl.load(weight_ptr + (row * 0)[:, None] + column[None, :], mask=kept, other=0.0).to(tl.float32)
    if OWN:
        place = place_of(slot_ptr, offset_ptr, offset_stride, slots, token, real)
        weight = own_or(vectors_ptr, place, column, column < N, weight)
    y = x * rate[:, None] * weight
    out = out_ptr + (token * out_row + head * out_head)[:, None] + column[None, :]
    tl.store(out, y.to(out_ptr.dtype.element_ty), mask=kept)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    own: OwnWeights | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """out = x / sqrt(mean(x^2) + eps) * weight, float32 inside, one rounding.

    x ``[T, N]``, or ``[T, heads, N]`` where each head is normed; weight ``[N]``, x's type or float32. ``residual``
    ``[T, N]`` of x's type becomes residual + x in place, rounded, and is what is normed. ``own``: tokens with a weight
    of their adapter's. ``out``: x's shape and type; x itself is allowed; None makes one. Rows may be strided.

    A row's result depends on the row and its weight alone, bit for bit. Capturable in a CUDA graph. Raises TypeError or
    ValueError by the argument's name.
    """
    need_tensor("x", x, dtype=ACTIVATION_DTYPES, rows=True)
    need(x.dim() in (2, 3), "x", f"has {x.dim()} dimensions, must have 2 or 3; flatten the batch to [T, N]")
    tokens, size, device = x.shape[0], x.shape[-1], x.device
    need(1 <= size <= MAX_FEATURES, "x", f"has rows of {size}, must be 1 to {MAX_FEATURES}; a row is one tile here")
    need_tensor("weight", weight, dtype=(x.dtype, torch.float32), shape=(size,), device=device, contiguous=True)
    need(eps > 0, "eps", f"is {eps}, must be above 0; a row of zeros divides by its root")
    if residual is not None:
        need(x.dim() == 2, "residual", f"is given with x of {x.dim()} dimensions, must be 2; norm heads without it")
        need_tensor("residual", residual, dtype=x.dtype, shape=x.shape, device=device, rows=True)
    if own is not None:
        check_own("own", own, tokens, device)
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    need_tensor("out", out, dtype=x.dtype, shape=x.shape, device=device, rows=True)
    if not x.numel():
        return out
    heads = x.shape[1] if x.dim() == 3 else 1
    constexprs, launch = _tile(size, heads, residual is not None, own is not None)
    rows = tokens * heads
    _rms_norm_kernel[(cdiv(rows, constexprs["ROWS"]),)](
        x, x.stride(0), _head_stride(x),
        x if residual is None else residual, 0 if residual is None else residual.stride(0),
        out, out.stride(0), _head_stride(out), weight,
        *((x, x, x, 0, 0) if own is None else
          (own.vectors, own.slot, own.offset, own.offset.stride(0), own.offset.shape[0])),
        rows, eps, **constexprs, **launch.options,
    )  # fmt: skip
    return out


def _head_stride(x: Tensor) -> int:
    return x.stride(1) if x.dim() == 3 else 0


def _tile(size: int, heads: int, residual: bool, own: bool) -> tuple[dict[str, Any], Launch]:
    block = triton.next_power_of_2(size)
    rows = max(_TILE // block, 1)
    warps = max(4, min(8, block // 512))
    constexprs = {"N": size, "HEADS": heads, "BLOCK": block, "ROWS": min(rows, 16)}
    return {**constexprs, "RESIDUAL": residual, "OWN": own}, Launch(warps, 1)


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """Norms of hidden rows and, of models that have them, of heads, with and without adapters' own weights."""
    hidden = [(shape.hidden, 1, False), (shape.hidden, 1, True)] if shape.hidden else []
    for size, heads, residual in [*hidden, *[(shape.head_dim, shape.shard_heads, False)] * shape.qk_norm]:
        for own in (False, True):
            constexprs, launch = _tile(size, heads, residual, own)
            pointers = ["x_ptr", "out_ptr", "weight_ptr", *["residual_ptr"] * residual, *["vectors_ptr"] * own]
            kind = f"*{shape.dtype}"
            signature = {
                **dict.fromkeys(["x_ptr", "residual_ptr", "out_ptr", "weight_ptr"], kind),
                "vectors_ptr": "*fp32" if own else kind,
                "slot_ptr": "*i32" if own else kind,
                "offset_ptr": "*i64" if own else kind,
                **dict.fromkeys(["x_row", "x_head", "residual_row", "out_row", "out_head", "offset_stride"], "i32"),
                **dict.fromkeys(["slots", "rows"], "i32"),
                "eps": "fp32",
            }
            yield Build(
                f"rms_norm{'.residual' * residual}{'.own' * own}",
                _rms_norm_kernel,
                {name: signature[name] for name in _rms_norm_kernel.arg_names if name in signature},
                constexprs,
                frozenset([*pointers, "x_row", "x_head", "residual_row", "out_row", "out_head"]),
                launch,
                Expect(wide_loads_of=tuple(pointers)),
                kind=shape.kind,
            )


__all__ = ["MAX_FEATURES", "OwnWeights", "builds", "rms_norm"]

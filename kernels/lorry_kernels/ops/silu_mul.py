"""The gate of a SwiGLU feed-forward (Shazeer, "GLU variants improve transformer", 2020)."""

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

BLOCK = 1024
LAUNCH = Launch(4, 1)


@triton.jit
def _silu_mul_kernel(
    gate_up_ptr: tl.tensor, gate_up_row: tl.tensor, out_ptr: tl.tensor, out_row: tl.tensor, n: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = column < n
    at = gate_up_ptr + row * gate_up_row + column
    gate = tl.load(at, mask=kept, other=0.0).to(tl.float32)
    up = tl.load(at + n, mask=kept, other=0.0).to(tl.float32)
    small = tl.exp(-tl.abs(gate))  # of neither sign does it overflow
    y = gate * (tl.where(gate >= 0, 1.0, small) / (1.0 + small)) * up
    tl.store(out_ptr + row * out_row + column, y.to(out_ptr.dtype.element_ty), mask=kept)


def silu_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """out = silu(gate) * up of gate_up ``[T, 2 N]``, gate first -> ``[T, N]`` of its type; float32 inside, one
    rounding.

    Rows may be strided. ``out`` None makes one. A row's result depends on the row alone, bit for bit. Capturable in a
    CUDA graph. Raises TypeError or ValueError by the argument's name.
    """
    need_tensor("gate_up", gate_up, dtype=ACTIVATION_DTYPES, shape=(None, None), rows=True)
    tokens, both = gate_up.shape
    need(both % 2 == 0, "gate_up", f"has {both} columns, must be even; lay the gate's before the up projection's")
    size = both // 2
    out = torch.empty(tokens, size, dtype=gate_up.dtype, device=gate_up.device) if out is None else out
    need_tensor("out", out, dtype=gate_up.dtype, shape=(tokens, size), device=gate_up.device, rows=True)
    if out.numel():
        _silu_mul_kernel[(tokens, cdiv(size, BLOCK))](
            gate_up, gate_up.stride(0), out, out.stride(0), size, **_constexprs(), **LAUNCH.options
        )
    return out


def _constexprs() -> dict[str, Any]:
    return {"BLOCK": BLOCK}


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """One kernel serves all shapes."""
    pointers = ("gate_up_ptr", "out_ptr")
    integers = ("gate_up_row", "out_row", "n")
    kind = f"*{shape.dtype}"
    yield Build(
        "silu_mul",
        _silu_mul_kernel,
        {"gate_up_ptr": kind, "gate_up_row": "i32", "out_ptr": kind, "out_row": "i32", "n": "i32"},
        _constexprs(),
        frozenset([*pointers, *integers]),
        LAUNCH,
        Expect(wide_loads_of=pointers),
        kind=shape.kind,
    )


__all__ = ["builds", "silu_mul"]

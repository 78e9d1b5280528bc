"""New keys and values into their pages. Pages and block tables are PagedAttention's idea (Kwon and others, 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorry_kernels.aot.build import Build, Expect, ModelShape
from lorry_kernels.ops.attention_shape import check_pages, check_rows, stride
from lorry_kernels.ops.checks import need_tensor
from lorry_kernels.ops.launch import Launch, cdiv

_ROWS = 16
_LAUNCH = Launch(4, 1)


@triton.jit(do_not_specialize=["slot", "tokens"])
def _kv_write(
    k: tl.tensor,
    v: tl.tensor,
    k_pages: tl.tensor,
    v_pages: tl.tensor,
    slot: tl.tensor,
    tokens: tl.tensor,
    slots: tl.int64,
    stride_k_row: tl.int64,
    stride_k_head: tl.int64,
    stride_v_row: tl.int64,
    stride_v_head: tl.int64,
    stride_page: tl.int64,
    stride_kv_head: tl.int64,
    stride_token: tl.int64,
    PAGE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    at = tl.load(slot + row, mask=row < tokens, other=-1).to(tl.int64)
    written = ((at >= 0) & (at < slots))[:, None] & (column < D)[None, :]
    line = row.to(tl.int64)
    key = tl.load(k + (line * stride_k_row + head * stride_k_head)[:, None] + column[None, :], mask=written, other=0.0)
    value = tl.load(
        v + (line * stride_v_row + head * stride_v_head)[:, None] + column[None, :], mask=written, other=0.0
    )
    place = (at // PAGE) * stride_page + head * stride_kv_head + (at % PAGE) * stride_token
    tl.store(k_pages + place[:, None] + column[None, :], key, mask=written)
    tl.store(v_pages + place[:, None] + column[None, :], value, mask=written)


def kv_write(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slot: Tensor) -> None:
    """Writes row t of k and v to position ``slot[t] % page`` of page ``slot[t] // page``, bit for bit.

    k, v ``[T, KVH, D]``, rows may be strided; pages ``[P, KVH, page, D]`` of the same dtype; slot ``[T]`` int64 on the
    device. A row whose slot is below 0 (padding) or not below ``P * page`` writes nothing. Slots of one call that are
    written are distinct. One launch, capturable in a CUDA graph. Raises TypeError or ValueError by the argument's name.
    """
    keys, values = check_pages(k_pages, v_pages)
    pages, kv_heads, page, dim = keys.shape
    k = check_rows("k", k, keys, dim, kv_heads, None)
    tokens = k.shape[0]
    v = check_rows("v", v, keys, dim, kv_heads, tokens)
    slot = need_tensor("slot", slot, dtype=torch.int64, shape=(tokens,), device=keys.device, contiguous=True)
    if tokens == 0:
        return
    _kv_write[(cdiv(tokens, _ROWS), kv_heads)](
        k,
        v,
        keys,
        values,
        slot,
        tokens,
        pages * page,
        stride(k, 0),
        stride(k, 1),
        stride(v, 0),
        stride(v, 1),
        stride(keys, 0),
        stride(keys, 1),
        stride(keys, 2),
        **_constexprs(page, dim),
        **_LAUNCH.options,
    )


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """What ``kv_write`` launches for a model on one shard."""
    pointers = ("k", "v", "k_pages", "v_pages")
    strides = [name for name in _kv_write.arg_names if name.startswith("stride_")]
    for page in shape.page_tokens:
        yield Build(
            op="kv_write",
            kernel=_kv_write,
            signature={
                **dict.fromkeys(pointers, f"*{shape.dtype}"),
                "slot": "*i64",
                "tokens": "i32",
                **dict.fromkeys(("slots", *strides), "i64"),
            },
            constexprs=_constexprs(page, shape.head_dim),
            divisible=frozenset((*pointers, "slots", *strides)),
            launch=_LAUNCH,
            expect=Expect(tensor_cores=False, wide_loads_of=pointers),
            kind=shape.kind,
        )


def _constexprs(page: int, dim: int) -> dict[str, Any]:
    return {"PAGE": page, "D": dim, "BLOCK_D": triton.next_power_of_2(dim), "ROWS": _ROWS}


__all__ = ["builds", "kv_write"]

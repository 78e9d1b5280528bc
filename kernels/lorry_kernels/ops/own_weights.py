"""Norm weights of adapters' own: which row takes which."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorry_kernels.ops.checks import need_tensor

ALIGN = 32
"""Elements: a place in the vectors' arena begins at a multiple of 128 bytes."""

_ALIGN = tl.constexpr(ALIGN)


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """``vectors`` float32 ``[F]``, the arena of vectors; ``offset`` int64 ``[slots]`` (rows may be strided), a slot's
    place in it, a multiple of 32 elements, or -1 where the slot has the base's weight; ``slot`` int32 ``[T]``, each
    token's, -1 for none. A token whose slot is not one of ``slots`` gets the base's weight."""

    vectors: Tensor
    offset: Tensor
    slot: Tensor


def check_own(argument: str, own: OwnWeights, tokens: int, device: torch.device) -> None:
    """Raises TypeError or ValueError by the field's name."""
    need_tensor(
        f"{argument}.vectors",
        own.vectors,
        dtype=torch.float32,
        shape=(None,),
        device=device,
        contiguous=True,
        aligned=16,
    )
    need_tensor(f"{argument}.offset", own.offset, dtype=torch.int64, shape=(None,), device=device)
    need_tensor(f"{argument}.slot", own.slot, dtype=torch.int32, shape=(tokens,), device=device, contiguous=True)


@triton.jit
def place_of(
    slot_ptr: tl.tensor, offset_ptr: tl.tensor, offset_stride: tl.tensor, slots: tl.tensor, token: tl.tensor,
    real: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Where each token's own weight begins, or -1."""
    slot = tl.load(slot_ptr + token, mask=real, other=-1)
    has = (slot >= 0) & (slot < slots)
    return tl.load(offset_ptr + slot.to(tl.int64) * offset_stride, mask=has, other=-1)


@triton.jit
def own_or(vectors_ptr: tl.tensor, place: tl.tensor, column: tl.tensor, real: tl.tensor, base: tl.tensor) -> tl.tensor:
    """float32 ``[rows, columns]``: each row's own weight from ``place`` ``[rows]``, or ``base``'s."""
    begin = tl.multiple_of(tl.where(place < 0, 0, place), [_ALIGN])
    has = (place >= 0)[:, None]
    own = tl.load(vectors_ptr + begin[:, None] + column[None, :], mask=has & real[None, :], other=0.0)
    return tl.where(has, own, base)


__all__ = ["ALIGN", "OwnWeights", "check_own", "own_or", "place_of"]

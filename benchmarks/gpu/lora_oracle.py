"""``lorry_kernels.reference.multi_lora`` once more, for many rows: all of a slot at once, in float64 on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tests.kernels.lora_site import Site
from torch import Tensor

from lorry_kernels.reference.multi_lora import RANKS


def oracle(one: Site, slots: Sequence[int], x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    """float64 ``[T, sum N_s]`` where x and y lie: what y becomes, before its own rounding. ``one`` has its arena and
    vectors there too; its tables, whose scales are multiplied by ``scale``, are read on the host."""
    out = y.double()
    for slot in sorted(set(slots) - {-1}):
        rows = torch.tensor([at for at, own in enumerate(slots) if own == slot], device=x.device)
        x_rows, column = x[rows].double(), 0
        for s, width in enumerate(one.widths):
            columns = slice(column, column + width)
            column += width
            factors = _factors(one, slot, s)
            if factors is None:
                delta = torch.zeros(len(rows), width, dtype=torch.float64, device=x.device)
            else:
                shrunk = (x_rows @ factors[0].T).to(x.dtype).double()
                delta = shrunk @ factors[1].T * (float(one.tables.scale[slot, s]) * scale)
            out[rows, columns] = _finish(one, slot, s, columns, out[rows, columns], delta)
    return out


def _factors(one: Site, slot: int, s: int) -> tuple[Tensor, Tensor] | None:
    """A ``[ranks, K]`` and B ``[N_s, ranks]``, float64; None where there is nothing."""
    a_at = one.tables.a_offset[slot, s if one.a_slices > 1 else 0].tolist()
    b_at = [at for at in one.tables.b_offset[slot, s].tolist() if at >= 0]
    if not b_at:
        return None
    width = one.widths[s]
    a = [one.arena[at : at + RANKS * one.k].view(RANKS, one.k) for at in a_at[: len(b_at)]]
    b = [one.arena[at : at + RANKS * width].view(width, RANKS) for at in b_at]
    return torch.cat(a).double(), torch.cat(b, 1).double()


def _finish(one: Site, slot: int, s: int, columns: slice, y: Tensor, delta: Tensor) -> Tensor:
    vectors = one.vectors
    if vectors is None:
        return y + delta
    gain, addend = (_vector(vectors.vectors, at, slot, s, y) for at in (vectors.gain_offset, vectors.addend_offset))
    outside = 0.0 if vectors.bias is None or gain is None else vectors.bias[columns].double()
    y = y + delta if gain is None else gain * (y - outside + delta) + outside
    return y if addend is None else y + addend


def _vector(vectors: Tensor, offset: Tensor, slot: int, s: int, y: Tensor) -> Tensor | None:
    at = int(offset[slot, s])
    return vectors[at : at + y.shape[1]].double() if at >= 0 else None


__all__ = ["oracle"]

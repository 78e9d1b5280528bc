"""Embeddings of mixed adapters, one token at a time, in float64. An id that nobody has a row for is NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

RANKS = 16
"""Ranks of a chunk: A by id is ``[V', 16]``."""


def embed_reference(
    ids: Sequence[int],
    weight: Tensor,
    slots: Sequence[int],
    arena: Tensor | None = None,
    offset: Sequence[int] = (),
    limit: Sequence[int] = (),
) -> Tensor:
    """weight ``[V, H]``; ``slots`` one a token (-1, or any that the tables lack: the base). Slot s's own matrix is
    ``[limit[s], H]`` from ``arena[offset[s]]`` on, ``offset[s]`` -1: none. Returns float64 ``[T, H]``."""
    hidden = weight.shape[1]
    out = torch.full((len(ids), hidden), math.nan, dtype=torch.float64)
    for t, (name, slot) in enumerate(zip(ids, slots, strict=True)):
        if arena is not None and 0 <= slot < len(offset) and offset[slot] >= 0:
            if 0 <= name < limit[slot]:
                begin = offset[slot] + name * hidden
                out[t] = arena[begin : begin + hidden].to(torch.float64)
        elif 0 <= name < weight.shape[0]:
            out[t] = weight[name].to(torch.float64)
    return out


def embedding_planes_reference(
    planes: Tensor,
    order: Sequence[int],
    ids: Sequence[int],
    slots: Sequence[int],
    arena: Tensor,
    a_offset: Tensor,
    limit: Sequence[int],
) -> Tensor:
    """float64 ``[T, blocks * 16]``: what planes ``[T, blocks * 16]`` become. Their row i is token ``order[i]``'s: of
    its slot's chunks ``[limit[slot], 16]`` at ``a_offset`` ``[slots, 1, blocks]``, -1 from a slot's end on, the id's
    row; the rest stays."""
    out = planes.to(torch.float64).clone()
    for i, t in enumerate(order):
        if slots[t] < 0:
            continue
        for block, at in enumerate(a_offset[slots[t], 0].tolist()):
            if at < 0:
                break
            columns = slice(block * RANKS, (block + 1) * RANKS)
            if 0 <= ids[t] < limit[slots[t]]:
                begin = at + ids[t] * RANKS
                out[i, columns] = arena[begin : begin + RANKS].to(torch.float64)
            else:
                out[i, columns] = math.nan
    return out


def replace_rows_reference(
    y: Tensor,
    ids: Sequence[int],
    slots: Sequence[int],
    row_of: Sequence[int],
    row_of_at: Sequence[int],
    limit: Sequence[int],
    vectors: Tensor,
    rows_at: Sequence[int],
) -> Tensor:
    """float64 ``[T, H]``: what y ``[T, H]`` becomes, before its own rounding. Slot s's map is ``limit[s]`` entries of
    ``row_of`` from ``row_of_at[s]`` on (-1: no map); an entry is a row of H elements of ``vectors`` from ``rows_at[s]``
    on, -1 for none."""
    hidden = y.shape[1]
    out = y.to(torch.float64).clone()
    for t, (name, slot) in enumerate(zip(ids, slots, strict=True)):
        if not 0 <= slot < len(row_of_at) or row_of_at[slot] < 0 or not 0 <= name < limit[slot]:
            continue
        row = row_of[row_of_at[slot] + name]
        if row >= 0:
            begin = rows_at[slot] + row * hidden
            out[t] = vectors[begin : begin + hidden].to(torch.float64)
    return out


__all__ = ["RANKS", "embed_reference", "embedding_planes_reference", "replace_rows_reference"]

"""Sequences in shuffled pages of an arena in which everything that belongs to nobody is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lorry_kernels.reference import kv_write_reference, paged_attention_reference

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Paged:
    """``table`` names a page of NaN wherever a sequence has none (behind its end, and before the window)."""

    k_pages: Tensor
    v_pages: Tensor
    table: Tensor
    lengths: Tensor

    def reference(self, q: Tensor, row: int, window: int | None = None, scale: float | None = None) -> Tensor:
        """Of q ``[n, H, D]``, the last n tokens of a row."""
        start = int(self.lengths[row]) - q.shape[0]
        return paged_attention_reference(q, self.k_pages, self.v_pages, self.table[row].tolist(), start, window, scale)


def paged(
    lengths: Sequence[int],
    kv_heads: int,
    dim: int,
    page: int,
    dtype: torch.dtype,
    *,
    window: int | None = None,
    queries: Sequence[int] | None = None,
    shared: bool = False,
    max_pages: int | None = None,
    seed: int = 0,
    layers: int = 3,
) -> Paged:
    """shared: whole pages at the same place of every sequence are the first one's. window, queries: pages that no query
    (of the last ``queries[b]``, one by default) sees are freed: NaN, and out of the table."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-length // page) for length in lengths]
    pages = sum(needed) + 3
    arena = torch.full((pages + 1, layers, 2, kv_heads, page, dim), float("nan"), dtype=dtype)
    k_pages, v_pages = arena[:, 1, 0], arena[:, 1, 1]
    order = torch.randperm(pages, generator=generator).tolist()
    free = order.pop()
    width = max(*needed, 1) if max_pages is None else max_pages
    table = torch.full((len(lengths), width), free, dtype=torch.int32)
    written: list[tuple[int, ...]] = []
    for row, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        seen = 1 if queries is None else queries[row]
        low = 0 if window is None else max(0, length - max(seen, 1) + 1 - window)
        owned = [order.pop() for _ in range(count)]
        if shared and written:
            both = min(length // page, lengths[0] // page)
            owned = [*written[0][:both], *owned[both:]]
        written.append(tuple(owned))
        slots = [owned[p // page] * page + p % page for p in range(length)]
        if shared and row:
            slots = [-1 if at // page in written[0] else at for at in slots]
        keys = torch.randn(length, kv_heads, dim, generator=generator).to(dtype)
        values = torch.randn(length, kv_heads, dim, generator=generator).to(dtype)
        kv_write_reference(keys, values, k_pages, v_pages, slots)
        for index, owner in enumerate(owned):
            if index >= low // page:
                table[row, index] = owner
            elif not shared:
                k_pages[owner] = v_pages[owner] = float("nan")
    return Paged(k_pages, v_pages, table, torch.tensor(list(lengths), dtype=torch.int32))


def rows(count: int, heads: int, dim: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(count, heads, dim, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got: Tensor, want: Tensor) -> None:
    """float16: weights and results are rounded to it."""
    bound = 2e-3 if got.dtype == torch.float16 else 1e-5
    torch.testing.assert_close(got.double(), want, atol=bound, rtol=bound)


__all__ = ["CPU", "Paged", "close", "paged", "rows"]

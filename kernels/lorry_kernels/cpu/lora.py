"""Multi-LoRA over a row arena: one shrink and one expand a site for any mix of adapters.

The arena holds every adapter's rank rows: ``a [R, S, K]`` and, a slice, ``b [R, N_s]`` with the scale
inside. An adapter owns some rows of it, the same rows at every site.

Two ways through, chosen a step at a time by ``route``:

* **dense**: the rows of all adapters of the batch, as one range of the arena, in one GEMM; each token
  then keeps its own adapter's columns and zeroes the rest. No weight is copied or read twice, and a
  decode step is bound by weight bytes and dispatch, not by the arithmetic this wastes.
* **segment**: one pair of small GEMMs for each run of neighbouring tokens with one adapter. Nothing is
  wasted; right for prefill, where runs are long.

The zeroing is a fill, not a product: a neighbour's overflow (inf * 0 is NaN) must not reach a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# A segment costs this many multiply-adds of dispatch at every site (about 15 us a GEMM pair, measured
# on two AVX512 cores at 50 GMAC/s); only the ratio to the dense path's waste matters.
SEGMENT_COST = 750_000
# Rows of one site are about this wide (K plus N of a slice); used for the same ratio.
ROW_WIDTH = 1_500


@dataclass(frozen=True, slots=True)
class DenseBlock:
    """Tokens ``begin..end`` against arena rows ``low..high``. ``foreign`` ``[T, rows, 1]`` bool is True
    where a row is not the token's own."""

    begin: int
    end: int
    low: int
    high: int
    foreign: Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens ``begin..end`` of one adapter, whose arena rows are the ``runs`` (low, high)."""

    begin: int
    end: int
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LoraRouting:
    """Which arena rows each token of a step meets. Empty for a batch without adapters: nothing runs."""

    dense: tuple[DenseBlock, ...] = ()
    segments: tuple[Segment, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.dense and not self.segments


def _runs(rows: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending runs (low, high) of the given rows."""
    found: list[list[int]] = []
    for row in sorted(rows):
        if found and found[-1][1] == row:
            found[-1][1] = row + 1
        else:
            found.append([row, row + 1])
    return tuple((low, high) for low, high in found)


def _dense_block(parts: Sequence[tuple[int, int, tuple[int, ...]]]) -> DenseBlock:
    """One block over neighbouring parts (begin, end, rows); parts without rows keep nothing."""
    begin, end = parts[0][0], parts[-1][1]
    low = min(min(rows) for _, _, rows in parts if rows)
    high = max(max(rows) for _, _, rows in parts if rows) + 1
    foreign = torch.ones(end - begin, high - low, 1, dtype=torch.bool)
    for start, stop, rows in parts:
        for first, last in _runs(rows):
            foreign[start - begin : stop - begin, first - low : last - low] = False
    return DenseBlock(begin, end, low, high, foreign)


def route(parts: Sequence[tuple[int, int, tuple[int, ...]]]) -> LoraRouting:
    """``parts`` are (begin, end, rows) of neighbouring tokens in order: the arena rows of their adapter,
    or () for the base. Short parts that stand together share a dense block where that is cheaper."""
    dense: list[DenseBlock] = []
    segments: list[Segment] = []
    pending: list[tuple[int, int, tuple[int, ...]]] = []

    def settle() -> None:
        with_rows = [part for part in pending if part[2]]
        if with_rows:
            first = next(i for i, part in enumerate(pending) if part[2])
            last = max(i for i, part in enumerate(pending) if part[2])
            block = pending[first : last + 1]
            tokens = block[-1][1] - block[0][0]
            span = max(max(p[2]) for p in with_rows) + 1 - min(min(p[2]) for p in with_rows)
            useful = sum((end - begin) * len(rows) for begin, end, rows in with_rows)
            # A dense block streams its whole range of rows once, whatever the tokens: count them as
            # eight tokens at least, which is where the GEMM stops being bound by those bytes.
            waste = (max(tokens, 8) * span - useful) * ROW_WIDTH
            if len(with_rows) > 1 and waste < len(with_rows) * SEGMENT_COST:
                dense.append(_dense_block(block))
            else:
                segments.extend(Segment(begin, end, _runs(rows)) for begin, end, rows in with_rows)
        pending.clear()

    merged: list[tuple[int, int, tuple[int, ...]]] = []
    for begin, end, rows in parts:
        if merged and merged[-1][1] == begin and merged[-1][2] == rows:
            merged[-1] = (merged[-1][0], end, rows)
        else:
            merged.append((begin, end, rows))
    for begin, end, rows in merged:
        if end - begin > 32:
            settle()
            if rows:
                segments.append(Segment(begin, end, _runs(rows)))
        else:
            pending.append((begin, end, rows))
    settle()
    return LoraRouting(tuple(dense), tuple(segments))


def lora_apply(y: Tensor, x: Tensor, a: Tensor, b: Sequence[Tensor], routing: LoraRouting) -> None:
    """Adds every token's delta into y in place.

    y float32 ``[T, sum N_s]``, x float32 ``[T, K]``, a ``[R, S, K]``, b[s] ``[R, N_s]``, all of one
    dtype. Rows of tokens without an adapter are not touched (bit-identical).
    """
    slices = a.shape[1]
    for block in routing.dense:
        count = block.high - block.low
        weights = a[block.low : block.high].flatten(0, 1)
        shrunk = torch.mm(x[block.begin : block.end], weights.t()).view(-1, count, slices)
        shrunk.masked_fill_(block.foreign, 0.0)
        column = 0
        for s, b_slice in enumerate(b):
            width = b_slice.shape[1]
            y[block.begin : block.end, column : column + width].addmm_(shrunk[:, :, s], b_slice[block.low : block.high])
            column += width
    for segment in routing.segments:
        rows_x = x[segment.begin : segment.end]
        for low, high in segment.runs:
            shrunk = torch.mm(rows_x, a[low:high].flatten(0, 1).t()).view(-1, high - low, slices)
            column = 0
            for s, b_slice in enumerate(b):
                width = b_slice.shape[1]
                y[segment.begin : segment.end, column : column + width].addmm_(shrunk[:, :, s], b_slice[low:high])
                column += width


__all__ = ["DenseBlock", "LoraRouting", "Segment", "lora_apply", "route"]

"""Multi-LoRA over a row arena: batched products for any mix of adapters, with no weight copied.

The arena holds every adapter's rank rows: ``a [S, R, K]`` and, a slice, ``b [R, N_s]`` with the scale inside.
An adapter owns some rows of it, the same rows at every site. Two ways through, chosen a step at a time by
``route``:

* **blocks**: for decode, where many adapters have a row or two each. The range of the arena that the batch's
  adapters lie in is seen as blocks of ``unit`` rows, the largest unit that tiles all of them, and is one strided
  operand of a batched product. A block meets its own adapter's tokens only; blocks of others in the range
  meet a dummy token whose result is dropped. An adapter of several blocks adds their results up.
* **segments**: for prefill, where runs of neighbouring tokens have one adapter: a pair of products each.

No product mixes one adapter's weights with another's tokens into a result that is kept, so a neighbour's
overflow or NaN stays with the neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Part = tuple[int, int, tuple[int, ...]]
"""(begin, end, rows): neighbouring tokens and the arena rows of their adapter, () for the base."""

LONG_PART = 32
"""Tokens; a longer part is always a segment of its own."""

# A rough model of time, in microseconds a slice, measured on two AVX512 cores; only its ratios matter.
_CALL_US = 6.0  # dispatch of a pair of products
_BLOCK_EXTRA_US = 12.0  # gather, scatter and the batched call
_ROW_US = 0.6  # to stream one rank row (K + N of about 1,500 float32) from memory
_ROW_TOKEN_US = 0.03  # to multiply one rank row with one token


@dataclass(frozen=True, slots=True)
class Blocks:
    """Tokens ``begin..end`` against arena rows ``low .. low + count * unit``, seen as ``count`` blocks.

    ``gather`` ``[count * width]`` names each block's tokens (relative to begin; the first token stands in where
    a block has fewer than ``width``), or is None where that is 0, 1, 2, ... ``keep`` picks the results that
    count and ``target`` the tokens they are added to, a token as often as its adapter has blocks; None where that
    is all of them, in order.
    """

    begin: int
    end: int
    low: int
    count: int
    unit: int
    width: int
    gather: Tensor | None
    keep: Tensor | None
    target: Tensor | None


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens ``begin..end`` of one adapter, whose arena rows are the ``runs`` (low, high)."""

    begin: int
    end: int
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LoraRouting:
    """Which arena rows each token of a step meets. Empty for a batch without adapters: nothing runs."""

    blocks: tuple[Blocks, ...] = ()
    segments: tuple[Segment, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.blocks and not self.segments


def route(parts: Sequence[Part]) -> LoraRouting:
    """``parts`` stand in order and cover the batch. Rows of different adapters are disjoint."""
    blocks: list[Blocks] = []
    segments: list[Segment] = []
    short: list[Part] = []

    def settle() -> None:
        found = [part for part in short if part[2]]
        made = _blocks(found) if len({rows for _, _, rows in found}) > 1 else None
        if made is not None:
            blocks.append(made)
        else:
            segments.extend(Segment(begin, end, _runs(rows)) for begin, end, rows in found)
        short.clear()

    for begin, end, rows in _merged(parts):
        if end - begin > LONG_PART:
            settle()
            if rows:
                segments.append(Segment(begin, end, _runs(rows)))
        else:
            short.append((begin, end, rows))
    settle()
    return LoraRouting(tuple(blocks), tuple(segments))


def lora_apply(y: Tensor, x: Tensor, a: Tensor, b: Sequence[Tensor], routing: LoraRouting) -> None:
    """Adds every token's delta into y in place.

    y float32 ``[T, sum N_s]``, x float32 ``[T, K]``, a ``[S, R, K]``, b[s] ``[R, N_s]``, all of one
    dtype. Rows of tokens without an adapter are not touched (bit-identical).
    """
    for block in routing.blocks:
        _apply_blocks(y, x, a, b, block)
    for segment in routing.segments:
        rows_x = x[segment.begin : segment.end]
        for low, high in segment.runs:
            column = 0
            for s, b_slice in enumerate(b):
                width = b_slice.shape[1]
                shrunk = torch.mm(rows_x, a[s, low:high].t())
                y[segment.begin : segment.end, column : column + width].addmm_(shrunk, b_slice[low:high])
                column += width


def _apply_blocks(y: Tensor, x: Tensor, a: Tensor, b: Sequence[Tensor], block: Blocks) -> None:
    tokens = x[block.begin : block.end]
    if block.gather is not None:
        tokens = tokens.index_select(0, block.gather)
    tokens = tokens.view(block.count, block.width, -1)
    high = block.low + block.count * block.unit
    column = 0
    for s, b_slice in enumerate(b):
        shrink = a[s, block.low : high].view(block.count, block.unit, -1)
        expand = b_slice[block.low : high].view(block.count, block.unit, -1)
        delta = torch.bmm(torch.bmm(tokens, shrink.transpose(1, 2)), expand).flatten(0, 1)
        rows_y = y[block.begin : block.end, column : column + delta.shape[1]]
        if block.target is not None:
            if block.keep is not None:
                delta = delta.index_select(0, block.keep)
            rows_y.index_add_(0, block.target, delta)
        elif block.keep is not None:
            rows_y.add_(delta.index_select(0, block.keep))
        else:
            rows_y.add_(delta)
        column += rows_y.shape[1]


def _merged(parts: Iterable[Part]) -> list[Part]:
    merged: list[Part] = []
    for begin, end, rows in parts:
        if merged and merged[-1][1] == begin and merged[-1][2] == rows:
            merged[-1] = (merged[-1][0], end, rows)
        else:
            merged.append((begin, end, rows))
    return merged


def _runs(rows: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending runs (low, high) of the given rows."""
    found: list[list[int]] = []
    for row in sorted(rows):
        if found and found[-1][1] == row:
            found[-1][1] = row + 1
        else:
            found.append([row, row + 1])
    return tuple((low, high) for low, high in found)


def _blocks(parts: Sequence[Part]) -> Blocks | None:
    """One Blocks over short parts with rows, or None where segments are cheaper."""
    begin, end = parts[0][0], parts[-1][1]
    tokens: dict[tuple[int, ...], list[int]] = {}
    for start, stop, rows in parts:
        tokens.setdefault(rows, []).extend(range(start - begin, stop - begin))
    runs = {rows: _runs(rows) for rows in tokens}
    unit = math.gcd(*(edge for own in runs.values() for run in own for edge in run))
    low = min(own[0][0] for own in runs.values())
    count = (max(own[-1][1] for own in runs.values()) - low) // unit
    width = max(len(own) for own in tokens.values())
    spread = count * unit
    by_blocks = _BLOCK_EXTRA_US + spread * (_ROW_US + width * _ROW_TOKEN_US)
    by_segments = sum(
        len(runs[rows]) * _CALL_US + len(rows) * (_ROW_US + (stop - start) * _ROW_TOKEN_US)
        for start, stop, rows in parts
    )
    if by_segments <= by_blocks:
        return None
    gather = [0] * (count * width)
    keep: list[int] = []
    target: list[int] = []
    for rows, own in tokens.items():
        for first, last in runs[rows]:
            for index in range((first - low) // unit, (last - low) // unit):
                for place, token in enumerate(own):
                    gather[index * width + place] = token
                    keep.append(index * width + place)
                    target.append(token)
    order = sorted(range(len(target)), key=target.__getitem__)
    keep, target = [keep[i] for i in order], [target[i] for i in order]
    everybody = target == list(range(end - begin))
    in_place = gather == list(range(end - begin))
    return Blocks(
        begin,
        end,
        low,
        count,
        unit,
        width,
        gather=None if in_place else torch.tensor(gather),
        keep=None if keep == list(range(count * width)) else torch.tensor(keep),
        target=None if everybody else torch.tensor(target),
    )


__all__ = ["LONG_PART", "Blocks", "LoraRouting", "Part", "Segment", "lora_apply", "route"]

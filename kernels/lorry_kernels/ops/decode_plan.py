"""Which keys meet which query in a decode step: splits of a fixed size, written once a step for all layers.

The idea is flash-decoding (Dao, Haziza, Massa, Sizov, 2023) with splits of a fixed size in place of a fixed number, so
that a row's sums are taken in the same order alone and in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorry_kernels.aot.build import Build, ModelShape
from lorry_kernels.ops.attention_shape import LANE, SPLIT_TOKENS, check_numbers, check_window
from lorry_kernels.ops.checks import need
from lorry_kernels.ops.launch import Launch, cdiv

_LAUNCH = Launch(1, 1)
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The work of one decode step, on the device. Filled once a step and window, read by every layer.

    item ``[capacity, 2]`` int32 are (row, split): items 0 .. rows - 1 each row's first split, behind them the others
    row by row; items ``[1]`` int32, how many there are; parts ``[rows, 3]`` int32: a row's first item behind the rows,
    its number of splits and its length. Split -1 marks a fault: a length below 0 or above the block table, or more
    splits than ``capacity`` has room for. Such a row's result is NaN, never something else.
    """

    item: Tensor
    items: Tensor
    parts: Tensor
    page_tokens: int
    max_pages: int
    window: int | None
    split_tokens: int

    def __post_init__(self) -> None:
        """Once a plan here, not once a layer. Raises TypeError or ValueError by the field's name."""
        check_numbers("item", self.item, (None, 2), self.item.device)
        check_numbers("items", self.items, (1,), self.item.device)
        check_numbers("parts", self.parts, (None, 3), self.item.device)

    @classmethod
    def allocate(
        cls,
        rows: int,
        max_pages: int,
        page_tokens: int,
        *,
        device: torch.device,
        window: int | None = None,
        split_tokens: int = SPLIT_TOKENS,
        capacity: int | None = None,
    ) -> DecodePlan:
        """Buffers for ``rows`` sequences of at most ``max_pages`` pages.

        capacity: items at most; by default the most there can be, ``rows`` times the splits of a full block table. A
        caller who knows lengths on the host may give less and hold ``split_count`` against it before each step.
        """
        need(rows > 0, "rows", f"is {rows}, must be above 0")
        need(max_pages > 0, "max_pages", f"is {max_pages}, must be above 0")
        need(
            page_tokens >= LANE and page_tokens % LANE == 0,
            "page_tokens",
            f"is {page_tokens}, must be a multiple of {LANE}",
        )
        need(
            split_tokens > 0 and split_tokens % 64 == 0, "split_tokens", f"is {split_tokens}, must be a multiple of 64"
        )
        need(
            max_pages * page_tokens < 2**31 - split_tokens,
            "max_pages",
            f"is {max_pages}, pages of {page_tokens} tokens hold more positions than int32 counts",
        )
        check_window(window)
        most = rows * cdiv(max_pages * page_tokens, split_tokens)
        need(capacity is None or capacity >= rows, "capacity", f"is {capacity}, must be at least the {rows} rows")
        size = most if capacity is None else min(capacity, most)
        return cls(
            item=torch.zeros(size, 2, dtype=torch.int32, device=device),
            items=torch.zeros(1, dtype=torch.int32, device=device),
            parts=torch.zeros(rows, 3, dtype=torch.int32, device=device),
            page_tokens=page_tokens,
            max_pages=max_pages,
            window=window,
            split_tokens=split_tokens,
        )

    @property
    def rows(self) -> int:
        return self.parts.shape[0]

    @property
    def capacity(self) -> int:
        return self.item.shape[0]

    @property
    def max_splits(self) -> int:
        """Of one row."""
        return cdiv(self.max_pages * self.page_tokens, self.split_tokens)

    def fill(self, lengths: Tensor) -> None:
        """lengths ``[rows]`` int32: keys of each row, its new token's included; 0 for a padded row. One launch without
        a host sync, capturable in a CUDA graph."""
        lengths = check_numbers("lengths", lengths, (self.rows,), self.item.device)
        _decode_plan[(self.rows,)](
            lengths,
            self.item,
            self.items,
            self.parts,
            self.rows,
            self.capacity,
            self.max_pages * self.page_tokens,
            **_constexprs(self.split_tokens, self.window),
            **_LAUNCH.options,
        )


def split_count(lengths: Sequence[int], window: int | None = None, split_tokens: int = SPLIT_TOKENS) -> int:
    """Items of a plan for these lengths: what ``capacity`` must hold. On the host."""
    reach = check_window(window)
    lows = [max(length - reach, 0) if reach else 0 for length in lengths]
    return sum(
        max(cdiv(length, split_tokens) - low // split_tokens, 1) for length, low in zip(lengths, lows, strict=True)
    )


@triton.jit
def _splits(length: tl.tensor, most: tl.tensor, SPLIT: tl.constexpr, WINDOW: tl.constexpr) -> Any:
    """(first split, splits behind it), both 0 for a length that is none."""
    low = tl.maximum(length - WINDOW, 0) if WINDOW else length * 0
    good = (length > 0) & (length <= most)
    first = tl.where(good, low // SPLIT, 0)
    more = tl.where(good, (length + SPLIT - 1) // SPLIT - first - 1, 0)
    return first, more


@triton.jit(do_not_specialize=["lengths", "item", "items", "parts", "rows", "capacity", "most"])
def _decode_plan(
    lengths: tl.tensor,
    item: tl.tensor,
    items: tl.tensor,
    parts: tl.tensor,
    rows: tl.tensor,
    capacity: tl.tensor,
    most: tl.tensor,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    behind = row * 0 + rows
    for start in range(0, row, BLOCK):
        other = start + lane
        others = tl.load(lengths + other, mask=other < row, other=0)
        _, further = _splits(others, most, SPLIT, WINDOW)
        behind += tl.sum(further, 0)
    length = tl.load(lengths + row)
    first, more = _splits(length, most, SPLIT, WINDOW)
    good = (length >= 0) & (length <= most) & ((more == 0) | (behind + more <= capacity))
    tl.store(item + row * 2, row)
    tl.store(item + row * 2 + 1, tl.where(good, first, -1))
    tl.store(parts + row * 3, behind)
    tl.store(parts + row * 3 + 1, tl.where(good, more + 1, -1))
    tl.store(parts + row * 3 + 2, length)
    if good:
        for start in range(0, more, BLOCK):
            split = start + lane
            place = item + (behind + split) * 2
            tl.store(place, row + split * 0, mask=split < more)
            tl.store(place + 1, first + 1 + split, mask=split < more)
    if row == 0:
        # Rows that fit are those up to the first that does not, and rows without further splits.
        total = row * 0
        reached = row * 0
        for start in range(0, rows, BLOCK):
            other = start + lane
            others = tl.load(lengths + other, mask=other < rows, other=0)
            _, further = _splits(others, most, SPLIT, WINDOW)
            ends = total + tl.cumsum(further, 0)
            reached = tl.maximum(reached, tl.max(tl.where(rows + ends <= capacity, ends, 0), 0))
            total += tl.sum(further, 0)
        tl.store(items, rows + reached)


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """What ``DecodePlan.fill`` launches."""
    for window in shape.windows:
        yield Build(
            op="decode_plan",
            kernel=_decode_plan,
            signature={
                **dict.fromkeys(("lengths", "item", "items", "parts"), "*i32"),
                **dict.fromkeys(("rows", "capacity", "most"), "i32"),
            },
            constexprs=_constexprs(SPLIT_TOKENS, window),
            divisible=frozenset(),
            launch=_LAUNCH,
        )


def _constexprs(split_tokens: int, window: int | None) -> dict[str, Any]:
    return {"SPLIT": split_tokens, "WINDOW": check_window(window), "BLOCK": _BLOCK}


__all__ = ["DecodePlan", "builds", "split_count"]

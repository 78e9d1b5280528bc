"""A site with adapters of given ranks, a batch over it, and everything that nobody owns poisoned with NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lorry_kernels.ops.expand import ExpandPlan, SiteVectors
from lorry_kernels.ops.lora import LoraTables, MultiLora
from lorry_kernels.ops.lora_tiles import RANKS
from lorry_kernels.ops.routing import Routing, checked_slots, route
from lorry_kernels.reference.multi_lora import multi_lora_reference
from lorry_kernels.tuning.rows import Phase

CPU = torch.device("cpu")
TOLERANCE = {torch.float16: 4e-3, torch.float32: 2e-5}
"""Of the largest value of the reference."""

RankOf = Callable[[int, int], int]
"""(slot, slice) -> true rank, 0 where the adapter has nothing there."""


@dataclass(frozen=True)
class Site:
    """Tables and arena of one (layer, site)."""

    k: int
    widths: tuple[int, ...]
    blocks: int
    dtype: torch.dtype
    arena: Tensor
    tables: LoraTables
    vectors: SiteVectors | None
    generation: Tensor

    @property
    def slots(self) -> int:
        return self.generation.shape[0]

    @property
    def a_slices(self) -> int:
        return self.tables.a_offset.shape[1]

    def lora(self, phase: Phase, block_n: int | None = None) -> MultiLora:
        """``block_n``: columns of a program; the interpreter takes as long for many as for few."""
        made = MultiLora.of(
            phase, self.k, self.widths, self.blocks, self.dtype, CPU, a_slices=1 if self.a_slices == 1 else None
        )
        if block_n is None:
            return made
        tiles = replace(made.expand.tiles, block_n=block_n)
        split = made.shrink.tiles.split
        second = ExpandPlan.of(
            phase, "interpreter", self.widths, self.blocks, split, self.dtype, CPU, a_slices=self.a_slices, tiles=tiles
        )
        return MultiLora(made.shrink, second)

    def batch(
        self, tokens: int, *, sliced: bool = False, size: float = 1.0, seed: int = 1, wide: bool = False
    ) -> tuple[Tensor, Tensor]:
        """x and y; ``sliced``: out of larger buffers that are NaN around them; ``wide``: y is float32, as logits."""
        generator = torch.Generator().manual_seed(seed)
        made = []
        kinds = (self.dtype, torch.float32 if wide else self.dtype)
        for width, factor, dtype in zip((self.k, sum(self.widths)), (size, 1.0), kinds, strict=True):
            values = (torch.randn(tokens, width, generator=generator) * factor).to(dtype)
            if sliced:
                whole = torch.full((tokens + 2, width + 48), float("nan"), dtype=dtype)
                whole[1 : tokens + 1, 16 : 16 + width] = values
                values = whole[1 : tokens + 1, 16 : 16 + width]
            made.append(values)
        return made[0], made[1]

    def routing(self, phase: Phase, slots: Sequence[int], expected: Sequence[int] | None = None) -> Routing:
        made = Routing.allocate(phase, len(slots), self.slots, CPU)
        for buffer in (made.order, made.tile, made.slot, made.fault, made.head):
            buffer.fill_(-(2**30))  # whoever reads what nobody wrote, dies of it
        wanted = [int(self.generation[slot]) for slot in slots] if expected is None else list(expected)
        route(checked_slots(slots, self.slots), torch.tensor(wanted, dtype=torch.int64), self.generation, made)
        return made

    def run(
        self,
        phase: Phase,
        slots: Sequence[int],
        x: Tensor,
        y: Tensor,
        *,
        vectors: bool = True,
        block_n: int | None = None,
        routing: Routing | None = None,
    ) -> Tensor:
        """y, changed in place."""
        lora = self.lora(phase, block_n)
        planes = torch.full_like(lora.planes(len(slots), CPU), float("nan"))
        routing = self.routing(phase, slots) if routing is None else routing
        lora(y, x, self.arena, self.tables, routing, planes, self.vectors if vectors else None)
        return y

    def reference(self, slots: Sequence[int], x: Tensor, y: Tensor) -> Tensor:
        own = self.vectors
        return multi_lora_reference(
            y,
            x,
            slots,
            self.arena,
            self.tables.a_offset,
            self.tables.b_offset,
            self.tables.scale,
            self.widths,
            vectors=None if own is None else own.vectors,
            gain_offset=None if own is None else own.gain_offset,
            addend_offset=None if own is None else own.addend_offset,
            bias=None if own is None else own.bias,
        )


class _Arena:
    """Hands out pieces between gaps, in an order that is not the order of asking."""

    def __init__(self, dtype: torch.dtype, align: int, seed: int) -> None:
        self.dtype, self.align = dtype, align
        self.generator = torch.Generator().manual_seed(seed)
        self.pieces: list[Tensor] = []
        self.at: list[int] = []
        self.end = 0

    def put(self, values: Tensor) -> int:
        gap = int(torch.randint(1, 4, (), generator=self.generator))
        self.end += gap * self.align
        self.at.append(self.end)
        self.pieces.append(values)
        self.end += -(-values.numel() // self.align) * self.align
        return self.at[-1]

    def tensor(self) -> Tensor:
        whole = torch.full((self.end + self.align,), float("nan"), dtype=self.dtype)
        for at, piece in zip(self.at, self.pieces, strict=True):
            whole[at : at + piece.numel()] = piece.flatten().to(self.dtype)
        return whole


def site(
    k: int,
    widths: tuple[int, ...],
    slots: int,
    blocks: int,
    rank_of: RankOf,
    dtype: torch.dtype,
    *,
    scale: float = 0.5,
    shared: bool = False,
    extras: str = "none",
    seed: int = 0,
) -> Site:
    """``shared``: one A for all slices, of slice 0's rank. ``extras``: "none", "gain", "bias" (gains over a base's
    bias), "addend" or "all"; a third of the slots, and of the others a slice, have none."""
    generator = torch.Generator().manual_seed(seed)
    arena, floats = _Arena(dtype, 128 // dtype.itemsize, seed), _Arena(torch.float32, 32, seed)
    a_slices = 1 if shared else len(widths)
    a_offset = torch.full((slots, a_slices, blocks), -1, dtype=torch.int64)
    b_offset = torch.full((slots, len(widths), blocks), -1, dtype=torch.int64)
    gain_offset = torch.full((slots, len(widths)), -1, dtype=torch.int64)
    addend_offset = gain_offset.clone()
    for slot in range(slots):
        for s, width in enumerate(widths):
            rank = rank_of(slot, 0 if shared else s)
            a = torch.randn(rank, k, generator=generator) / k**0.5
            b = torch.randn(width, rank, generator=generator) / max(rank, 1) ** 0.5
            for block in range(-(-rank // RANKS)):
                rows = slice(block * RANKS, (block + 1) * RANKS)
                if s < a_slices:
                    chunk = torch.zeros(RANKS, k)
                    chunk[: len(a[rows])] = a[rows]
                    a_offset[slot, s, block] = arena.put(chunk)
                chunk = torch.zeros(width, RANKS)
                chunk[:, : b[:, rows].shape[1]] = b[:, rows]
                b_offset[slot, s, block] = arena.put(chunk)
            if extras != "none" and slot % 3 != 2 and (slot + s) % 4 != 3:
                if extras != "addend":
                    gain_offset[slot, s] = floats.put(1 + torch.randn(width, generator=generator) / 4)
                if extras in ("addend", "all"):
                    addend_offset[slot, s] = floats.put(torch.randn(width, generator=generator))
    bias = torch.randn(sum(widths), generator=generator).to(dtype) if extras in ("bias", "all") else None
    scales = torch.full((slots, len(widths)), scale) * (1 + torch.rand(slots, len(widths), generator=generator))
    return Site(
        k,
        widths,
        blocks,
        dtype,
        arena.tensor(),
        LoraTables(a_offset, b_offset, scales),
        None if extras == "none" else SiteVectors(floats.tensor(), gain_offset, addend_offset, bias),
        torch.arange(slots, dtype=torch.int64) * 7 + 3,
    )


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """Within TOLERANCE of the reference, and finite everywhere."""
    assert torch.isfinite(got).all()
    if want.numel():
        most = float(want.abs().max())
        worst = float((got.double() - want).abs().max())
        assert worst <= TOLERANCE[dtype] * max(most, 1.0), f"off by {worst} of {most}"


def with_poisoned_slot(made: Site, slot: int) -> Site:
    """``slot``'s chunks are all NaN, as after a fault nobody saw."""
    arena = made.arena.clone()
    for table, width in ((made.tables.a_offset, made.k), (made.tables.b_offset, 0)):
        for s in range(table.shape[1]):
            for at in table[slot, s].tolist():
                if at >= 0:
                    arena[at : at + RANKS * (width or made.widths[s])] = float("nan")
    return replace(made, arena=arena)


__all__ = ["CPU", "TOLERANCE", "Site", "close", "site", "with_poisoned_slot"]

"""x A^T of every row with its own adapter's A, for all slices of a site at once, into float32 planes.

A program takes ``chunks`` chunks of 16 ranks whatever their slice, so q, k and v of rank 16 read x once. What is
summed over parts of K goes to planes of its own and is added up by ``expand`` in a fixed order: no atomics (split-K
with atomics is why others' greedy output does not repeat). After Punica's SGMV (Chen et al., 2023) and S-LoRA's
unified pages (Sheng et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from lorry_kernels.aot.build import Build, Expect, ModelShape
from lorry_kernels.ops.checks import ACTIVATION_DTYPES, need, need_tensor
from lorry_kernels.ops.launch import cdiv, programs
from lorry_kernels.ops.lora_tiles import ALIGNMENT, PHASES, RANKS, ShrinkTiles, shrink_tiles
from lorry_kernels.ops.routing import Routing
from lorry_kernels.tuning.rows import Phase


@triton.jit(do_not_specialize=["a_offset", "order", "tile", "tiles", "blocks"])
def _shrink(
    x: tl.tensor,
    arena: tl.tensor,
    a_offset: tl.tensor,
    order: tl.tensor,
    tile: tl.tensor,
    tiles: tl.tensor,
    planes: tl.tensor,
    features: tl.tensor,
    part_features: tl.tensor,
    blocks: tl.tensor,
    stride_x: tl.int64,
    stride_slot: tl.int64,
    stride_slice: tl.int64,
    stride_split: tl.int64,
    stride_plane: tl.int64,
    stride_place: tl.int64,
    SLICES: tl.constexpr,
    ENTRIES: tl.constexpr,
    ALIGN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPLIT: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()  # expand may be placed; it waits for what is written here
    # An entry is a chunk of A: entry e is block e // SLICES of slice e % SLICES, so equal ranks fill groups of CHUNKS.
    BR: tl.constexpr = CHUNKS * 16
    entries = SLICES * blocks
    base = tl.load(tiles) * SPLIT
    # Few tiles: a tile's groups are spread over programs. Many: one program takes them all. The sums are the same.
    fan = tl.minimum(tl.num_programs(0) // tl.maximum(base, 1), (entries + CHUNKS - 1) // CHUNKS)
    fan = tl.maximum(fan, 1)
    for work in range(tl.program_id(0), base * fan, tl.num_programs(0)):
        first = work // base
        number = (work % base) // SPLIT
        part = work % SPLIT
        slot = tl.load(tile + number * 3).to(tl.int64)
        start = tl.load(tile + number * 3 + 1)
        count = tl.load(tile + number * 3 + 2)

        table = a_offset + slot * stride_slot
        every = tl.arange(0, ENTRIES)
        there = tl.load(table + (every % SLICES) * stride_slice + every // SLICES, mask=every < entries, other=-1)
        groups = (tl.max(tl.where(there >= 0, every + 1, 0), axis=0) + CHUNKS - 1) // CHUNKS

        m = tl.arange(0, BM)
        r = tl.arange(0, BR)
        k = tl.arange(0, BK)
        real = m < count
        row = tl.load(order + start + m, mask=real, other=0).to(tl.int64)
        x_row = x + row[:, None] * stride_x + k[None, :]
        place = (start + m).to(tl.int64) * stride_place
        for group in range(first, groups, fan):
            entry = group * CHUNKS + r // 16
            at = tl.load(table + (entry % SLICES) * stride_slice + entry // SLICES, mask=entry < entries, other=-1)
            at = tl.multiple_of(at, [ALIGN])
            held = at >= 0
            a_row = arena + at[:, None] + (r % 16)[:, None] * features + k[None, :]
            acc = tl.zeros([BM, BR], tl.float32)
            for step in range(0, part_features, BK):
                begin = tl.multiple_of(part * part_features + step, BK)
                if EVEN:
                    x_tile = tl.load(x_row + begin, mask=real[:, None], other=0.0)
                    a_tile = tl.load(a_row + begin, mask=held[:, None], other=0.0)
                else:
                    within = (begin + k < features)[None, :]
                    x_tile = tl.load(x_row + begin, mask=real[:, None] & within, other=0.0)
                    a_tile = tl.load(a_row + begin, mask=held[:, None] & within, other=0.0)
                acc = tl.dot(x_tile, tl.trans(a_tile), acc, input_precision=PRECISION)
            into = planes + part * stride_split + (entry % SLICES) * stride_plane + (entry // SLICES) * 16 + r % 16
            tl.store(into[None, :] + place[:, None], acc, mask=real[:, None] & held[None, :])


@dataclass(frozen=True, slots=True)
class ShrinkPlan:
    """A site's shrink in one phase: K, slices with an A of their own, chunks of the largest rank, and the tiles."""

    k: int
    a_slices: int
    blocks: int
    dtype: torch.dtype
    tiles: ShrinkTiles

    @classmethod
    def of(cls, phase: Phase, arch: str, k: int, a_slices: int, blocks: int, dtype: torch.dtype) -> ShrinkPlan:
        """With the tiles of ``lora_tiles``. ``arch`` as ``launch.architecture`` says it."""
        need(k >= 1, "k", f"is {k}, must be 1 or more: features of the site's input")
        need(a_slices >= 1, "a_slices", f"is {a_slices}, must be 1 or more")
        need(1 <= blocks <= 16, "blocks", f"is {blocks}, must be 1 to 16: ranks to 256, 16 a block")
        need(dtype in ACTIVATION_DTYPES, "dtype", f"is {dtype}, must be one of {ACTIVATION_DTYPES}", TypeError)
        return cls(k, a_slices, blocks, dtype, shrink_tiles(phase, arch, k, a_slices, blocks, dtype.itemsize))

    @property
    def rank(self) -> int:
        """The last dimension of the planes."""
        return self.blocks * RANKS

    def planes(self, tokens: int, device: torch.device) -> Tensor:
        """An uninitialised workspace, float32 ``[split, a_slices, tokens, rank]``. Layers share one."""
        return torch.empty((self.tiles.split, self.a_slices, tokens, self.rank), dtype=torch.float32, device=device)


def shrink(x: Tensor, arena: Tensor, a_offset: Tensor, routing: Routing, planes: Tensor, plan: ShrinkPlan) -> None:
    """planes[p, s, i] = part p of K of A[slot, s] x[order[i]], where the slot has an A there; nothing else is written.

    x ``[T, K]`` (rows may be strided) and arena ``[E]`` bf16 or fp16 (float32 in tests); a_offset int64 ``[slots,
    a_slices, blocks]``, elements of the arena, each a multiple of 128 bytes, -1 from a slot's end on; planes float32
    ``[split, a_slices, T, rank]``. Sums are float32. A row's result depends on x's row and the slot's A alone, bit for
    bit. Raises TypeError or ValueError by the argument's name.
    """
    t = routing.tokens
    need_tensor("x", x, dtype=plan.dtype, shape=(t, plan.k), device=routing.order.device, rows=True)
    check_arena(arena, plan.dtype, x.device)
    check_offsets("a_offset", a_offset, routing.slots, plan.a_slices, plan.blocks, x.device)
    check_planes(planes, plan.tiles.split, plan.a_slices, t, plan.rank, x.device)
    need(
        routing.tile_rows == plan.tiles.block_m,
        "routing",
        f"has tiles of {routing.tile_rows} rows, the plan is for {plan.tiles.block_m}; allocate it for that phase",
    )
    if t == 0:
        return
    most = routing.capacity * plan.tiles.split * cdiv(plan.a_slices * plan.blocks, plan.tiles.chunks)
    _shrink[(min(programs(x.device, plan.tiles.occupancy), most),)](
        x,
        arena,
        a_offset,
        routing.order,
        routing.tile,
        routing.tiles,
        planes,
        plan.k,
        plan.tiles.part,
        plan.blocks,
        x.stride(0) if t > 1 else plan.k,  # of one row it may be anything, and would be another kernel
        a_offset.stride(0),
        a_offset.stride(1),
        planes.stride(0),
        planes.stride(1),
        plan.rank,
        **_constexprs(plan.k, plan.a_slices, plan.blocks, plan.dtype.itemsize, plan.tiles),
        **plan.tiles.launch.options,
    )


def check_arena(arena: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    need_tensor("arena", arena, dtype=dtype, shape=(None,), device=device, contiguous=True, aligned=16)


def check_vectors(vectors: Tensor, device: torch.device) -> None:
    need_tensor("vectors", vectors, dtype=torch.float32, shape=(None,), device=device, contiguous=True, aligned=16)


def check_offsets(
    argument: str, offsets: Tensor, slots: int, slices: int, blocks: int | None, device: torch.device
) -> None:
    """int64 ``[slots, slices, blocks]``, or ``[slots, slices]`` with None."""
    shape = (slots, slices) if blocks is None else (slots, slices, blocks)
    need_tensor(argument, offsets, dtype=torch.int64, shape=shape, device=device, rows=True)


def check_planes(planes: Tensor, split: int, slices: int, tokens: int, rank: int, device: torch.device) -> None:
    need_tensor("planes", planes, dtype=torch.float32, shape=(split, slices, tokens, rank), device=device)
    need(
        tokens <= 1 or planes.stride()[2:] == (rank, 1),
        "planes",
        f"has strides {list(planes.stride())}, the last two must be {rank} and 1",
    )


def _constexprs(k: int, a_slices: int, blocks: int, itemsize: int, tiles: ShrinkTiles) -> dict[str, int | str]:
    return {
        "SLICES": a_slices,
        "ENTRIES": triton.next_power_of_2(a_slices * blocks),
        "ALIGN": ALIGNMENT // itemsize,
        "BM": tiles.block_m,
        "BK": tiles.block_k,
        "CHUNKS": tiles.chunks,
        "SPLIT": tiles.split,
        "EVEN": int(k % tiles.part == 0),
        "PRECISION": "ieee" if itemsize == 4 else "tf32",
        "DEPENDENT": int(tiles.launch.dependent),
    }


SIGNATURE = {
    "x": "*bf16",
    "arena": "*bf16",
    "a_offset": "*i64",
    "order": "*i32",
    "tile": "*i32",
    "tiles": "*i32",
    "planes": "*fp32",
    "features": "i32",
    "part_features": "i32",
    "blocks": "i32",
    "stride_x": "i64",
    "stride_slot": "i64",
    "stride_slice": "i64",
    "stride_split": "i64",
    "stride_plane": "i64",
    "stride_place": "i64",
}
_WHOLE = frozenset({"a_offset", "order", "tile", "tiles", "blocks", "stride_slot", "stride_slice"})
"""Arguments that may be any number; the others are multiples of 16 for every shape that is shipped."""


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """Every site, phase and pool."""
    for phase in PHASES:
        for site in shape.lora_sites(phase):
            for blocks in shape.pools:
                tiles = shrink_tiles(phase, arch, site.k, len(site.slices), blocks, 2)
                yield Build(
                    "shrink",
                    _shrink,
                    {**SIGNATURE, **dict.fromkeys(("x", "arena"), f"*{shape.dtype}")},
                    _constexprs(site.k, len(site.slices), blocks, 2, tiles),
                    frozenset(SIGNATURE) - _WHOLE,
                    tiles.launch,
                    Expect(tensor_cores=True, wide_loads_of=("x", "arena")),
                    kind=shape.kind,
                )


__all__ = [
    "SIGNATURE",
    "ShrinkPlan",
    "builds",
    "check_arena",
    "check_offsets",
    "check_planes",
    "check_vectors",
    "shrink",
]

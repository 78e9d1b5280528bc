"""y += scale * (sum of planes) B^T, in place, for every slice of a site; then the slot's gain and addend.

After Punica's SGMV (Chen et al., 2023). The planes are summed in their order, rounded to the activation's type (as if
x A^T had been stored in it) and multiplied with B, chunk after chunk to the adapter's true rank, rounded up to 16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from lorry_kernels.aot.build import Build, Expect, ModelShape
from lorry_kernels.ops.checks import ACTIVATION_DTYPES, need, need_tensor
from lorry_kernels.ops.launch import programs
from lorry_kernels.ops.lora_tiles import ALIGNMENT, PHASES, RANKS, ExpandTiles, expand_tiles, shrink_tiles
from lorry_kernels.ops.routing import Routing
from lorry_kernels.ops.shrink import check_arena, check_offsets, check_planes, check_vectors
from lorry_kernels.tuning.rows import Phase

_ANY = (
    *("b_offset", "scale", "order", "tile", "tiles", "gain_offset", "addend_offset", "column_block"),
    *("columns", "blocks", "has_vectors", "has_bias"),
)
"""No alignment or value of these makes another kernel."""


@triton.jit(do_not_specialize=_ANY)
def _expand(
    y: tl.tensor,
    planes: tl.tensor,
    arena: tl.tensor,
    b_offset: tl.tensor,
    scale: tl.tensor,
    order: tl.tensor,
    tile: tl.tensor,
    tiles: tl.tensor,
    vectors: tl.tensor,
    gain_offset: tl.tensor,
    addend_offset: tl.tensor,
    bias: tl.tensor,
    column_block: tl.tensor,
    columns: tl.tensor,
    blocks: tl.tensor,
    has_vectors: tl.tensor,
    has_bias: tl.tensor,
    stride_y: tl.int64,
    stride_slot: tl.int64,
    stride_slice: tl.int64,
    stride_scale: tl.int64,
    stride_gain: tl.int64,
    stride_addend: tl.int64,
    stride_split: tl.int64,
    stride_plane: tl.int64,
    stride_place: tl.int64,
    PADDED: tl.constexpr,
    ALIGN: tl.constexpr,
    ALIGN_N: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    if DEPENDENT:
        gdc_wait()
    BR: tl.constexpr = CHUNKS * 16
    total = tl.load(tiles) * columns
    for work in range(tl.program_id(0), total, tl.num_programs(0)):
        tile_at = tile + (work // columns) * 3
        slot = tl.load(tile_at).to(tl.int64)
        start = tl.load(tile_at + 1)
        count = tl.load(tile_at + 2)
        block_at = column_block + (work % columns) * 4
        s = tl.load(block_at)
        first_n = tl.multiple_of(tl.load(block_at + 1), BN)
        width = tl.multiple_of(tl.load(block_at + 2), ALIGN_N)
        column = tl.multiple_of(tl.load(block_at + 3), ALIGN_N)

        table = b_offset + slot * stride_slot + s * stride_slice
        every = tl.arange(0, PADDED)
        held = tl.load(table + every, mask=every < blocks, other=-1) >= 0
        chunks = tl.max(tl.where(held, every + 1, 0), axis=0)
        gain_at = tl.full([], -1, tl.int64)
        addend_at = tl.full([], -1, tl.int64)
        if has_vectors != 0:
            gain_at = tl.load(gain_offset + slot * stride_gain + s)
            addend_at = tl.load(addend_offset + slot * stride_addend + s)
        changed = (chunks > 0) | (gain_at >= 0) | (addend_at >= 0)
        if changed:
            m = tl.arange(0, BM)
            n = first_n + tl.arange(0, BN)
            r = tl.arange(0, BR)
            real = m < count
            inside = n < width
            row = tl.load(order + start + m, mask=real, other=0).to(tl.int64)
            y_at = y + row[:, None] * stride_y + (column + n)[None, :]
            old = tl.load(y_at, mask=real[:, None] & inside[None, :], other=0.0).to(tl.float32)
            factor = tl.load(scale + slot * stride_scale + s)
            own = planes + s * stride_plane + (start + m).to(tl.int64)[:, None] * stride_place + r[None, :]
            acc = tl.zeros([BM, BN], tl.float32)
            for first in range(0, chunks, CHUNKS):
                chunk = first + r // 16
                at = tl.load(table + chunk, mask=chunk < blocks, other=-1)
                at = tl.max_constancy(tl.multiple_of(at, [ALIGN]), [16])
                there = at >= 0
                mask = real[:, None] & there[None, :]
                h = tl.load(own + first * 16, mask=mask, other=0.0)
                for part in tl.static_range(1, SPLIT):
                    h += tl.load(own + first * 16 + part * stride_split, mask=mask, other=0.0)
                b = tl.load(
                    arena + at[None, :] + n[:, None] * 16 + (r % 16)[None, :],
                    mask=inside[:, None] & there[None, :],
                    other=0.0,
                )
                acc = tl.dot(h.to(b.dtype), tl.trans(b), acc, input_precision=PRECISION)
            new = acc * factor
            # Places are multiples of 32: said by dividing, since a hint on a value of two branches is lost.
            if gain_at >= 0:
                outside = tl.zeros([BN], tl.float32)
                if has_bias != 0:
                    outside = tl.load(bias + column + n, mask=inside, other=0.0).to(tl.float32)
                gain = tl.load(vectors + gain_at // 32 * 32 + n, mask=inside, other=1.0)
                new = gain[None, :] * (old - outside[None, :] + new) + outside[None, :]
            else:
                new = old + new
            if addend_at >= 0:
                new += tl.load(vectors + addend_at // 32 * 32 + n, mask=inside, other=0.0)[None, :]
            tl.store(y_at, new.to(y.dtype.element_ty), mask=real[:, None] & inside[None, :])


@dataclass(frozen=True, slots=True)
class ExpandPlan:
    """A site's expand in one phase. ``a_slices``: the number of slices, or 1 where all of them share one A; ``split``:
    planes that the shrink makes."""

    widths: tuple[int, ...]
    a_slices: int
    blocks: int
    split: int
    dtype: torch.dtype
    tiles: ExpandTiles
    column_block: Tensor
    """int32 ``[column blocks, 4]`` on the device: slice, first column in it, its width, where it begins in y."""

    @classmethod
    def of(
        cls,
        phase: Phase,
        arch: str,
        widths: Sequence[int],
        blocks: int,
        split: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        a_slices: int | None = None,
        tiles: ExpandTiles | None = None,
    ) -> ExpandPlan:
        """``tiles`` None: those of ``lora_tiles``; ``a_slices`` None: one A a slice."""
        own = len(widths) if a_slices is None else a_slices
        need(len(widths) >= 1 and min(widths) >= 1, "widths", f"is {tuple(widths)}, must be N of each slice, 1 or more")
        need(own in (1, len(widths)), "a_slices", f"is {own}, must be 1 or the number of slices, {len(widths)}")
        need(1 <= blocks <= 16, "blocks", f"is {blocks}, must be 1 to 16: ranks to 256, 16 a block")
        need(split >= 1, "split", f"is {split}, must be 1 or more")
        need(dtype in ACTIVATION_DTYPES, "dtype", f"is {dtype}, must be one of {ACTIVATION_DTYPES}", TypeError)
        tiles = expand_tiles(phase, arch, min(widths), blocks) if tiles is None else tiles
        table = torch.tensor(_column_blocks(widths, tiles.block_n), dtype=torch.int32, device=device)
        return cls(tuple(widths), own, blocks, split, dtype, tiles, table)

    @property
    def columns(self) -> int:
        """N of all slices."""
        return sum(self.widths)


@dataclass(frozen=True, slots=True)
class SiteVectors:
    """What slots do at a site beside LoRA. ``vectors`` float32 ``[F]``; ``gain_offset`` and ``addend_offset`` int64
    ``[slots, slices]``, places in it of N_s elements, multiples of 32, -1 for none; ``bias`` ``[sum N_s]``, y's
    type: the base linear's own, which is in y already and which a gain leaves alone, or None."""

    vectors: Tensor
    gain_offset: Tensor
    addend_offset: Tensor
    bias: Tensor | None = None


def expand(
    y: Tensor,
    planes: Tensor,
    arena: Tensor,
    b_offset: Tensor,
    scale: Tensor,
    routing: Routing,
    plan: ExpandPlan,
    vectors: SiteVectors | None = None,
) -> None:
    """y[t] += scale[slot, s] * B[slot, s] h, in place, with h the sum of the planes' rows rounded to the plan's type.

    y ``[T, sum N_s]`` (rows may be strided) of the plan's dtype, or float32 as logits are; arena ``[E]`` of the plan's
    dtype; planes as ``shrink`` wrote them; b_offset int64 ``[slots, slices, blocks]``, elements of the arena, each a
    multiple of 128 bytes, -1 from a slot's end on; scale float32 ``[slots, slices]``. With ``vectors``, where the slot
    has them: ``y = gain * (y - bias + delta) + bias + addend``, a slot without LoRA here included. Float32 inside,
    one rounding. Rows in no tile are not touched. A row's result depends on the row and its slot alone, bit for bit.
    Raises TypeError or ValueError by the argument's name.
    """
    t, device, slices = routing.tokens, routing.order.device, len(plan.widths)
    kinds = dict.fromkeys((plan.dtype, torch.float32))
    need_tensor("y", y, dtype=tuple(kinds), shape=(t, plan.columns), device=device, rows=True)
    check_planes(planes, plan.split, plan.a_slices, t, plan.blocks * RANKS, device)
    check_arena(arena, plan.dtype, device)
    check_offsets("b_offset", b_offset, routing.slots, slices, plan.blocks, device)
    need_tensor("scale", scale, dtype=torch.float32, shape=(routing.slots, slices), device=device, rows=True)
    if vectors is not None:
        check_vectors(vectors.vectors, device)
        check_offsets("gain_offset", vectors.gain_offset, routing.slots, slices, None, device)
        check_offsets("addend_offset", vectors.addend_offset, routing.slots, slices, None, device)
        if vectors.bias is not None:
            need_tensor("bias", vectors.bias, dtype=plan.dtype, shape=(plan.columns,), device=device, contiguous=True)
    need(
        routing.tile_rows == plan.tiles.block_m,
        "routing",
        f"has tiles of {routing.tile_rows} rows, the plan is for {plan.tiles.block_m}; allocate it for that phase",
    )
    if t == 0:
        return
    extra = SiteVectors(scale, b_offset, b_offset) if vectors is None else vectors  # not read where there are none
    columns = plan.column_block.shape[0]
    _expand[(min(programs(device, plan.tiles.occupancy), routing.capacity * columns),)](
        y,
        planes,
        arena,
        b_offset,
        scale,
        routing.order,
        routing.tile,
        routing.tiles,
        extra.vectors,
        extra.gain_offset,
        extra.addend_offset,
        y if extra.bias is None else extra.bias,
        plan.column_block,
        columns,
        plan.blocks,
        int(vectors is not None),
        int(extra.bias is not None),
        y.stride(0) if t > 1 else plan.columns,  # of one row it may be anything, and would be another kernel
        b_offset.stride(0),
        b_offset.stride(1),
        scale.stride(0),
        extra.gain_offset.stride(0),
        extra.addend_offset.stride(0),
        planes.stride(0),
        planes.stride(1) if plan.a_slices > 1 else 0,
        plan.blocks * RANKS,
        **_constexprs(plan.widths, plan.blocks, plan.split, plan.dtype.itemsize, plan.tiles),
        **plan.tiles.launch.options,
    )


def _column_blocks(widths: Sequence[int], block_n: int) -> list[tuple[int, int, int, int]]:
    return [(s, first, width, sum(widths[:s])) for s, width in enumerate(widths) for first in range(0, width, block_n)]


def _constexprs(
    widths: Sequence[int], blocks: int, split: int, itemsize: int, tiles: ExpandTiles
) -> dict[str, int | str]:
    return {
        "PADDED": triton.next_power_of_2(blocks),
        "ALIGN": ALIGNMENT // itemsize,
        "ALIGN_N": gcd(16, *widths),
        "BM": tiles.block_m,
        "BN": tiles.block_n,
        "CHUNKS": tiles.chunks,
        "SPLIT": split,
        "PRECISION": "ieee" if itemsize == 4 else "tf32",
        "DEPENDENT": int(tiles.launch.dependent),
    }


SIGNATURE = {
    "y": "*bf16",
    "planes": "*fp32",
    "arena": "*bf16",
    "b_offset": "*i64",
    "scale": "*fp32",
    "order": "*i32",
    "tile": "*i32",
    "tiles": "*i32",
    "vectors": "*fp32",
    "gain_offset": "*i64",
    "addend_offset": "*i64",
    "bias": "*bf16",
    "column_block": "*i32",
    "columns": "i32",
    "blocks": "i32",
    "has_vectors": "i32",
    "has_bias": "i32",
    "stride_y": "i64",
    "stride_slot": "i64",
    "stride_slice": "i64",
    "stride_scale": "i64",
    "stride_gain": "i64",
    "stride_addend": "i64",
    "stride_split": "i64",
    "stride_plane": "i64",
    "stride_place": "i64",
}
_STRIDES = ("stride_slot", "stride_slice", "stride_scale", "stride_gain", "stride_addend")
"""Of tables: any numbers. All that is in neither list is a multiple of 16 for every shape that is shipped."""


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """Every site and phase (the head's y, logits, in float32), and the embedding, whose planes are gathered whole, for
    every pool."""
    for phase in PHASES:
        for blocks in shape.pools:
            for site in shape.lora_sites(phase):
                split = shrink_tiles(phase, arch, site.k, len(site.slices), blocks, 2).split
                yield _build(shape, site.slices, phase, arch, blocks, split, wide=site == shape.head)
            if shape.hidden:
                yield _build(shape, (shape.hidden,), phase, arch, blocks, 1)


def _build(
    shape: ModelShape, widths: Sequence[int], phase: Phase, arch: str, blocks: int, split: int, *, wide: bool = False
) -> Build:
    """``wide``: y is float32, and stands for the bias, which is not there."""
    tiles = expand_tiles(phase, arch, min(widths), blocks)
    y = "fp32" if wide else shape.dtype
    return Build(
        "expand",
        _expand,
        {**SIGNATURE, "arena": f"*{shape.dtype}", **dict.fromkeys(("y", "bias"), f"*{y}")},
        _constexprs(widths, blocks, split, 2, tiles),
        frozenset(SIGNATURE) - {*_ANY, *_STRIDES},
        tiles.launch,
        Expect(tensor_cores=True, wide_loads_of=("y", "arena")),
        kind=" ".join(["y=fp32"] * wide + [shape.kind]).strip(),
    )


__all__ = ["SIGNATURE", "ExpandPlan", "SiteVectors", "builds", "expand"]

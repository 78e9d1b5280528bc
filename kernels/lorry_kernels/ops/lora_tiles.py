"""Tiles of the multi-LoRA kernels. They follow from the phase, the widths and the largest rank of the pool alone, never
from a batch: so a row's result is the same bits alone, in any batch and in any order. No Triton, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from lorry_kernels.ops.launch import Launch, cdiv
from lorry_kernels.tuning.rows import Phase
from lorry_kernels.tuning.table import lookup

PHASES: tuple[Phase, ...] = ("decode", "prefill")

RANKS = 16
"""Ranks of a chunk of the arena."""

ALIGNMENT = 128
"""Bytes; every chunk begins at a multiple of it."""


def block_m(phase: Phase) -> int:
    """Rows of a tile: 16 for decode (few rows an adapter), 64 for prefill. Results of the two differ in their last
    bits."""
    return 16 if phase == "decode" else 64


@dataclass(frozen=True, slots=True)
class ShrinkTiles:
    """A program multiplies ``block_m`` rows with ``chunks`` chunks of A (of any slices) over one of ``split`` parts of
    K, ``part`` features each, ``block_k`` at a time."""

    block_m: int
    block_k: int
    chunks: int
    split: int
    part: int
    launch: Launch = field(default_factory=Launch)
    occupancy: int = 2


@dataclass(frozen=True, slots=True)
class ExpandTiles:
    """A program adds ``block_n`` columns of one slice to ``block_m`` rows, ``chunks`` chunks of B at a time."""

    block_m: int
    block_n: int
    chunks: int
    launch: Launch = field(default_factory=Launch)
    occupancy: int = 2


def shrink_tiles(phase: Phase, arch: str, k: int, a_slices: int, blocks: int, itemsize: int) -> ShrinkTiles:
    """The table's, cut to the site. ``blocks``: chunks of the largest rank that the tables hold; ``arch``: "sm_80",
    "gfx942", ...; a part of K has 512 features or more."""
    config = lookup(arch, "shrink", k, 0, a_slices * blocks * RANKS, phase)
    block_k = max(16, min(config.block_k * 2 // itemsize, _power(k)))
    part = cdiv(cdiv(k, max(1, min(config.split, k // 512))), block_k) * block_k
    chunks = min(config.chunks, _power(a_slices * blocks))
    launch = config.launch.on(arch)
    return ShrinkTiles(block_m(phase), block_k, chunks, cdiv(k, part), part, launch, config.occupancy)


def expand_tiles(phase: Phase, arch: str, narrowest: int, blocks: int) -> ExpandTiles:
    """The table's, cut to the site. ``narrowest``: the smallest N of its slices."""
    config = lookup(arch, "expand", 0, narrowest, blocks * RANKS, phase)
    block_n = max(16, min(config.block_n, _power(narrowest)))
    chunks = min(config.chunks, _power(blocks))
    return ExpandTiles(block_m(phase), block_n, chunks, config.launch.on(arch), config.occupancy)


def _power(value: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << max(value - 1, 0).bit_length()


__all__ = ["ALIGNMENT", "PHASES", "RANKS", "ExpandTiles", "ShrinkTiles", "block_m", "expand_tiles", "shrink_tiles"]

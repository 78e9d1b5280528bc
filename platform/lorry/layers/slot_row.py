"""One slot's row of the device's tables: which column says where what of an adapter lies. No torch.

A row is published by one copy. It has ``offsets`` int64 columns (elements from the arena's beginning, -1: nothing
there) and ``scales`` float32 columns; per (layer, site) they are the tables that the multi-LoRA kernels take:
``a`` and ``b`` ``[slices, blocks]`` of 16 ranks each, ``gain``, ``addend`` and ``in_gain`` ``[slices]`` vectors,
``scale`` ``[slices]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lorry.layers.sites import Site
from lorry.layers.spec import DecoderSpec

ALIGN = 128
"""Bytes that every piece begins at a multiple of: one cache line of a GPU, and more than its widest load."""

CHUNK_RANK = 16
"""Ranks of one chunk: the smallest depth of a tensor-core product in 16-bit types."""

CHUNK_ROWS = 8
"""Where chunks of one matrix follow each other, their rows are a multiple of it: the next one is aligned."""


@dataclass(frozen=True, slots=True)
class SiteColumns:
    """First columns. ``scale`` counts in ``scales``, all others in ``offsets``."""

    slices: int
    blocks: int
    a: int
    b: int
    gain: int
    addend: int
    in_gain: int
    scale: int


class SlotRow:
    """The columns for adapters of ranks up to ``max_rank`` on a decoder."""

    def __init__(self, spec: DecoderSpec, max_rank: int) -> None:
        self.blocks = -(-max_rank // CHUNK_RANK)
        self.scales = 0
        self.elements: list[int] = []
        """By column of ``offsets``: of the piece that begins there, in its own type's elements."""
        sites: dict[tuple[int, Site], SiteColumns] = {}
        for site in spec.lora_sites():
            count, k, widths = len(site.slices), site.in_features, site.out_features
            a = self._take([CHUNK_RANK * k] * (count * self.blocks))
            b = self._take([CHUNK_RANK * n for n in widths for _ in range(self.blocks)])
            gain, addend, in_gain = self._take(widths), self._take(widths), self._take([k] * count)
            sites[site.layer, site.site] = SiteColumns(count, self.blocks, a, b, gain, addend, in_gain, self.scales)
            self.scales += count
        self.sites: Mapping[tuple[int, Site], SiteColumns] = sites
        self.norms: Mapping[str, int] = {name: self._take([size]) for name, size in spec.norms().items()}

    @property
    def offsets(self) -> int:
        return len(self.elements)

    def pairs(self) -> tuple[list[list[int]], list[list[int]]]:
        """Columns of A's chunks and of B's, a row for each slice of each site, ``blocks`` in each."""
        found: tuple[list[list[int]], list[list[int]]] = ([], [])
        for at in self.sites.values():
            for rows, first in zip(found, (at.a, at.b), strict=True):
                rows.extend(
                    list(range(begin, begin + at.blocks))
                    for begin in range(first, first + at.slices * at.blocks, at.blocks)
                )
        return found

    def _take(self, elements: Sequence[int]) -> int:
        first = len(self.elements)
        self.elements.extend(elements)
        return first


def largest_chunk_elements(spec: DecoderSpec) -> int:
    """Of one A ``[16, K]`` or B ``[N, 16]``: a page must hold it, since none crosses a page."""
    return CHUNK_RANK * max(max(site.in_features, *site.out_features) for site in spec.lora_sites())


__all__ = ["ALIGN", "CHUNK_RANK", "CHUNK_ROWS", "SiteColumns", "SlotRow", "largest_chunk_elements"]

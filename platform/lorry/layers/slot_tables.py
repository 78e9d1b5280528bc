"""The slot tables on the device that the kernels read: where every adapter's chunks and vectors lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lorry.errors import InternalError
from lorry.ids import Generation, SlotId
from lorry.layers.embedding_tables import EmbeddingTables
from lorry.layers.sites import Site
from lorry.layers.slot_row import ALIGN, SlotRow
from lorry.layers.wide_tables import WideTables, put

NO_GENERATION = -1
"""Of an empty slot: no row of a batch carries it."""


@dataclass(frozen=True, slots=True)
class SiteTables:
    """Views of all slots' rows for one (layer, site), strided by slot: ``a_offset`` and ``b_offset`` int64 ``[slots,
    slices, blocks]``, ``gain_offset``, ``addend_offset`` and ``in_gain_offset`` int64 ``[slots, slices]``, ``scale``
    float32 ``[slots, slices]``."""

    a_offset: Tensor
    b_offset: Tensor
    scale: Tensor
    gain_offset: Tensor
    addend_offset: Tensor
    in_gain_offset: Tensor


class SlotTables:
    """``publish`` and ``clear`` are enqueued on the current stream, so a kernel launched after them sees them whole and
    one launched before does not see them at all."""

    def __init__(self, row: SlotRow, slots: int, device: torch.device) -> None:
        self._row = row
        self._elements = np.array(row.elements, np.int64)
        self._pairs = np.array(row.pairs(), np.int64)
        self._slots = slots
        self._offsets = torch.full((slots, row.offsets), -1, dtype=torch.int64, device=device)
        self._scales = torch.zeros((slots, row.scales), dtype=torch.float32, device=device)
        self.generation = torch.full((slots,), NO_GENERATION, dtype=torch.int64, device=device)
        self.sites: Mapping[tuple[int, Site], SiteTables] = {key: self._views(*key) for key in row.sites}
        self.norms: Mapping[str, Tensor] = {name: self._offsets[:, column] for name, column in row.norms.items()}
        """int64 ``[slots]`` by the base's tensor name, strided."""
        self.embedding = EmbeddingTables(row.blocks, slots, device)
        """Filled before ``publish``; ``clear`` empties it too."""
        self.head = WideTables(row.blocks, slots, device)
        """As ``embedding``."""

    def _views(self, layer: int, site: Site) -> SiteTables:
        at = self._row.sites[layer, site]

        def columns(first: int, *shape: int) -> Tensor:
            return self._offsets[:, first : first + math.prod(shape)].view(self._slots, *shape)

        return SiteTables(
            columns(at.a, at.slices, at.blocks),
            columns(at.b, at.slices, at.blocks),
            self._scales[:, at.scale : at.scale + at.slices],
            columns(at.gain, at.slices),
            columns(at.addend, at.slices),
            columns(at.in_gain, at.slices),
        )

    def publish(
        self,
        slot: SlotId,
        generation: Generation,
        offsets: npt.NDArray[np.int64],
        scales: npt.NDArray[np.float32],
        unit: npt.NDArray[np.int64],
        pages: int,
        page_bytes: int,
    ) -> None:
        """``offsets`` in elements of ``unit`` bytes, of an arena with so many pages that may be used. Raises
        InternalError, nothing published, for a slot or generation out of range, a row of another width, a piece that is
        misaligned, outside those pages, or does not end in the page that it begins in, or for chunks of A and B that
        are not in pairs from the first block on: expand would read planes that nobody wrote."""
        if not 0 <= slot < self._slots:
            raise InternalError(f"slot: {slot} is not one of {self._slots}; nothing was published")
        if generation < 0:
            raise InternalError(f"generation: {generation} of slot {slot} is negative; nothing was published")
        if offsets.shape != (self._row.offsets,) or scales.shape != (self._row.scales,):
            raise InternalError(f"offsets: {offsets.shape} and {scales.shape} are no row of this device's tables")
        used = offsets >= 0
        begins, sizes = (all_of[used] * unit[used] for all_of in (offsets, self._elements))
        if (begins % ALIGN != 0).any() or (begins >= pages * page_bytes).any() or (offsets < -1).any():
            raise InternalError(
                f"offsets: a piece of slot {slot} is not aligned to {ALIGN} bytes, or outside the arena; nothing was "
                "published"
            )
        over = begins % page_bytes + sizes > page_bytes
        if over.any():
            column = int(np.flatnonzero(used)[np.argmax(over)])
            raise InternalError(
                f"offsets: the piece of column {column}, slot {slot}, begins at byte {begins[over][0]} and has "
                f"{sizes[over][0]}, past its page of {page_bytes}; nothing was published"
            )
        a, b = offsets[self._pairs] >= 0
        alone = (a != b).any(1) | (a[:, 1:] & ~a[:, :-1]).any(1)
        if alone.any():
            row = int(np.argmax(alone))
            raise InternalError(
                f"offsets: slot {slot} has chunks of A in blocks {np.flatnonzero(a[row]).tolist()} and of B in "
                f"{np.flatnonzero(b[row]).tolist()}, from column {self._pairs[0, row, 0]} on; nothing was published"
            )
        # The generation goes last: on one stream nothing can run between, and a reader that compares it has the row.
        put(self._offsets[slot], torch.from_numpy(offsets))
        put(self._scales[slot], torch.from_numpy(scales))
        self.generation[slot : slot + 1].fill_(generation)

    def clear(self, slot: SlotId) -> None:
        """No row of a batch matches the slot any more, and nothing in it is followed."""
        self.generation[slot : slot + 1].fill_(NO_GENERATION)
        self._offsets[slot].fill_(-1)
        self._scales[slot].zero_()
        self.clear_wide(slot)

    def clear_wide(self, slot: SlotId) -> None:
        """What was filled before ``publish``."""
        self.embedding.clear(slot)
        self.head.clear(slot)


__all__ = ["NO_GENERATION", "SiteTables", "SlotTables"]

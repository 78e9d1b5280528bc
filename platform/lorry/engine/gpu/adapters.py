"""Adapters on a device with a page arena: loads, the slot table that provenance is read from, and proof of the bytes.

As ``lorry.engine.arena`` on the CPU: the digest in the slot table was written together with the bytes, and ``verify``
shows that the bytes are still those.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lorry.adapters.image.extras import extra_sums
from lorry.adapters.image.packed import PackedImage
from lorry.engine.gpu.copies import Copies, copying
from lorry.engine.gpu.forms import Form
from lorry.engine.gpu.pages import PageMap
from lorry.engine.slot_table import SlotTable
from lorry.errors import AdapterLoadFailed, SlotIntegrity
from lorry.ids import AdapterKey, ChunkId, Generation, SlotId
from lorry.layers.extras import AdapterExtras, ChunkedEmbedding, ChunkedHead
from lorry.layers.extras_arena import ExtrasArena, arena_bytes
from lorry.layers.sites import SITE_SLICES, Site
from lorry.layers.slot_row import SlotRow
from lorry.layers.slot_tables import SlotTables
from lorry.layers.spec import DecoderSpec
from lorry.models.paged import InGains
from lorry.scheduler.plan import SlotLoad

_PAGES_AT_ONCE = 16
"""Are gathered to be summed up; more would only take more memory."""


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """What was loaded: ``pages`` are the arena's, int64 on the device, in the image's order; ``sums`` is what they add
    up to. ``extras`` (embedding and head) lie in the extras' arena; ``in_gains`` says where its row of the tables has
    input gains."""

    generation: Generation
    adapter: AdapterKey
    chunks: tuple[ChunkId, ...]
    pages: Tensor
    sums: tuple[int, ...]
    extras: AdapterExtras | None
    extra_sums: tuple[int | None, ...]
    in_gains: InGains

    @property
    def form(self) -> Form:
        """Of a step with it."""
        if any(len(SITE_SLICES[site]) > 1 for _, site in self.in_gains):
            return Form.SLICED
        return Form.OWN if self.in_gains or self.extras is not None else Form.LORA


class DeviceAdapters(SlotTable[DeviceSlot]):
    """All adapters on the device."""

    _place = "chunk"

    def __init__(
        self,
        spec: DecoderSpec,
        row: SlotRow,
        arena: Tensor,
        dtype: torch.dtype,
        pages: PageMap,
        tables: SlotTables,
        copies: Copies,
        extras: ExtrasArena,
    ) -> None:
        """``arena`` uint8 ``[pages + 1, page_bytes]``: the page behind the last is nobody's."""
        super().__init__()
        self._sites = spec.lora_sites()
        self._row = row
        self._arena = arena
        self._words = arena.view(torch.int64)
        self._dtype = dtype
        self._pages = pages
        self._copies = copies
        self._extras = extras
        self.tables = tables

    def load(self, load: SlotLoad, image: PackedImage, step: int) -> None:
        """Copies the image's pages into the chunks' pages, then publishes the slot. Raises AdapterLoadFailed, nothing
        published, where image and plan disagree or the host copy is damaged."""
        if image.digest != load.adapter.digest or image.dtype != self._dtype or image.chunk_count != len(load.chunks):
            raise AdapterLoadFailed(
                f"adapter {load.adapter}: the host image is {image.digest}, {image.dtype}, {image.chunk_count} pages, "
                f"for {len(load.chunks)} pages of {self._dtype}"
            )
        self.unload(load.slot)
        places = np.array([self._pages.chunk(chunk) for chunk in load.chunks], np.int64)
        extras = None if image.extras is None else self._room(image.extras, load.adapter)
        try:
            self._fill(load, image, places, extras, step)
        except BaseException:  # half an adapter is never left, after an interrupt neither
            self.tables.clear_wide(load.slot)
            self._extras.release(extras)
            raise

    def _fill(
        self,
        load: SlotLoad,
        image: PackedImage,
        places: npt.NDArray[np.int64],
        extras: AdapterExtras | None,
        step: int,
    ) -> None:
        with copying(self._copies):
            for page, source in zip(places, image.pages, strict=True):
                self._copies.copy(self._arena[int(page)], source)
            if extras is not None and image.extras is not None:
                for target, source in dict(zip(extras.tensors(), image.extras.tensors(), strict=True)).items():
                    self._copies.copy(target, source)
        offsets = image.offsets(places)
        entry = DeviceSlot(
            load.generation,
            load.adapter,
            load.chunks,
            torch.from_numpy(places).to(self._arena.device),
            image.page_sums,
            extras,
            image.extra_sums,
            self._in_gains(offsets),
        )
        if not self._intact(entry, whole=True):
            raise AdapterLoadFailed(f"adapter {load.adapter}: its copy in host memory is damaged; it is fetched again")
        pages, page_bytes = self._arena.shape[0] - 1, self._arena.shape[1]
        self._point(load.slot, extras)
        self.tables.publish(load.slot, load.generation, offsets, image.scales, image.unit, pages, page_bytes)
        self._publish(load.slot, entry, step)

    def _room(self, extras: AdapterExtras, adapter: AdapterKey) -> AdapterExtras:
        """Uninitialised, in the extras' arena; a tensor that embedding and head share is one there too. What is there
        moves together where the room is in pieces. Raises AdapterLoadFailed where there is too little."""
        free = self._extras.bytes.numel() - self._extras.used
        if arena_bytes(extras) > free:
            raise AdapterLoadFailed(
                f"adapter {adapter}: its embedding and head take {arena_bytes(extras)} bytes and {free} are free; "
                "raise extras_fraction"
            )
        taken: list[Tensor] = []

        def take(tensor: Tensor) -> Tensor:
            found = self._extras.take(tensor)
            if found is None:
                raise _InPieces
            taken.append(found)
            return found

        try:
            return extras.map(take)
        except _InPieces:
            for tensor in taken:
                self._extras.give_back(tensor)
            self._compact()
            return extras.map(take)

    def _compact(self) -> None:
        """On the compute stream: steps before it read the old places, those after it the new ones."""
        moved = self._extras.compact()
        for slot, entry in self._slots.items():
            if entry.extras is not None:
                self._slots[slot] = replace(entry, extras=entry.extras.map(moved))
                self._point(slot, self._slots[slot].extras)

    def _point(self, slot: SlotId, extras: AdapterExtras | None) -> None:
        if extras is None:
            return
        embedding, head = extras.embedding, extras.head
        if embedding is not None:
            assert isinstance(embedding, ChunkedEmbedding)
            self.tables.embedding.publish(slot, embedding, self._extras)
        if isinstance(head, ChunkedHead):
            self.tables.head.publish(slot, self._extras, head.a, head.b, head.gain, head.addend)

    def _in_gains(self, offsets: npt.NDArray[np.int64]) -> InGains:
        found: dict[tuple[int, Site], tuple[int, ...]] = {}
        for site in self._sites:
            first = self._row.sites[site.layer, site.site].in_gain
            own = tuple(index for index in range(len(site.slices)) if offsets[first + index] >= 0)
            if own:
                found[site.layer, site.site] = own
        return found

    def unload(self, slot: SlotId) -> None:
        entry = self._slots.get(slot)
        if entry is not None:
            self.tables.clear(slot)
            self._extras.release(entry.extras)
        super().unload(slot)

    def release(self, chunks: Iterable[ChunkId]) -> None:
        """Gives the pages behind chunks that no slot has back. Raises SlotIntegrity, nothing given back, where a slot
        has one of them."""
        given = list(chunks)
        if not given:
            return
        held = {chunk: slot for slot, entry in self._slots.items() for chunk in entry.chunks}
        for chunk in given:
            if chunk in held:
                raise SlotIntegrity(f"chunk {chunk} was given back and belongs to slot {held[chunk]}")
        self._pages.release_chunks(given)

    def _places(self, entry: DeviceSlot) -> Iterable[int]:
        return entry.chunks

    def _check_places(self) -> None:
        self._pages.check_integrity()
        super()._check_places()

    def _intact(self, entry: DeviceSlot, whole: bool) -> bool:
        """All of it in either case: a device reads gigabytes in a millisecond."""
        found = [self._words.index_select(0, part).sum(1) for part in torch.split(entry.pages, _PAGES_AT_ONCE)]
        sums = tuple(torch.cat(found).tolist()) if entry.sums else ()
        return sums == entry.sums and extra_sums(entry.extras) == entry.extra_sums


class _InPieces(Exception):
    """What is free is no single piece."""


__all__ = ["DeviceAdapters", "DeviceSlot"]

"""Adapters on a device with a page arena: loads, the slot table that provenance is read from, and proof of the bytes.

As ``lorry.engine.arena`` on the CPU: the digest in the slot table was written together with the bytes, and ``verify``
shows that the bytes are still those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lorry.adapters.image.extras import extra_sums
from lorry.adapters.image.packed import PackedImage
from lorry.engine.gpu.copies import Copies, copying
from lorry.engine.gpu.pages import PageMap
from lorry.engine.slot_table import SlotTable
from lorry.errors import AdapterLoadFailed, SlotIntegrity
from lorry.ids import AdapterDigest, ChunkId, Generation, SlotId
from lorry.layers.extras import AdapterExtras
from lorry.layers.sites import Site
from lorry.layers.slot_row import SlotRow
from lorry.layers.slot_tables import SlotTables
from lorry.layers.spec import DecoderSpec
from lorry.scheduler.plan import SlotLoad

_PAGES_AT_ONCE = 16
"""Are gathered to be summed up; more would only take more memory."""


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """What was loaded: ``pages`` are the arena's, int64 on the device, in the image's order; ``sums`` is what they add
    up to. ``extras`` (embedding and head) lie on the device too; ``in_gains`` are views of the pages, float32 ``[K]``
    by (layer, site), one a slice or None."""

    generation: Generation
    digest: AdapterDigest
    chunks: tuple[ChunkId, ...]
    pages: Tensor
    sums: tuple[int, ...]
    extras: AdapterExtras | None
    extra_sums: tuple[int | None, ...]
    in_gains: Mapping[tuple[int, Site], tuple[Tensor | None, ...]]

    @property
    def special(self) -> bool:
        """It has what the slot tables do not say."""
        return self.extras is not None or bool(self.in_gains)


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
        self.tables = tables

    def load(self, load: SlotLoad, image: PackedImage, step: int) -> None:
        """Copies the image's pages into the chunks' pages, then publishes the slot. Raises AdapterLoadFailed, nothing
        published, where image and plan disagree or the host copy is damaged."""
        if image.digest != load.digest or image.dtype != self._dtype or image.chunk_count != len(load.chunks):
            raise AdapterLoadFailed(
                f"adapter {load.digest}: the host image is {image.digest}, {image.dtype}, {image.chunk_count} pages, "
                f"for {len(load.chunks)} pages of {self._dtype}"
            )
        self.unload(load.slot)
        places = np.array([self._pages.chunk(chunk) for chunk in load.chunks], np.int64)
        extras = None
        with copying(self._copies):
            for page, source in zip(places, image.pages, strict=True):
                self._copies.copy(self._arena[int(page)], source)
            if image.extras is not None:
                extras = _on_device(image.extras, self._arena.device, load.digest)
        offsets = image.offsets(places)
        entry = DeviceSlot(
            load.generation,
            load.digest,
            load.chunks,
            torch.from_numpy(places).to(self._arena.device),
            image.page_sums,
            extras,
            image.extra_sums,
            self._in_gains(offsets),
        )
        if not self._intact(entry, whole=True):
            raise AdapterLoadFailed(f"adapter {load.digest}: its copy in host memory is damaged; it is fetched again")
        arena_bytes = self._arena.numel()
        self.tables.publish(load.slot, load.generation, offsets, image.scales, arena_bytes, image.unit)
        self._publish(load.slot, entry, step)

    def _in_gains(self, offsets: npt.NDArray[np.int64]) -> Mapping[tuple[int, Site], tuple[Tensor | None, ...]]:
        vectors = self._arena.view(-1).view(torch.float32)
        found: dict[tuple[int, Site], tuple[Tensor | None, ...]] = {}
        for site in self._sites:
            first = self._row.sites[site.layer, site.site].in_gain
            begins = [int(offset) for offset in offsets[first : first + len(site.slices)]]
            if max(begins) >= 0:
                size = site.in_features
                found[site.layer, site.site] = tuple(vectors[at : at + size] if at >= 0 else None for at in begins)
        return found

    def unload(self, slot: SlotId) -> None:
        if slot in self._slots:
            self.tables.clear(slot)
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


def _on_device(extras: AdapterExtras, device: torch.device, digest: AdapterDigest) -> AdapterExtras:
    """Copies; a tensor that embedding and head share stays one. Raises AdapterLoadFailed where the device has no room
    in one piece, though the budget has the bytes: no other request need end for it."""
    if device.type == "cpu":
        return extras
    try:
        return extras.map(lambda tensor: tensor.to(device))
    except torch.OutOfMemoryError as error:
        raise AdapterLoadFailed(
            f"adapter {digest}: the device has no {extras.nbytes} bytes for its embedding and head; lower "
            "extras_fraction"
        ) from error


__all__ = ["DeviceAdapters", "DeviceSlot"]

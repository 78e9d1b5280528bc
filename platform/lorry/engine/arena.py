"""Adapter storage on the CPU device: the row arena and the slot table that says what lies in it.

Every site has ``rows`` rank rows (``chunks * chunk_rank``); a chunk is the same ``chunk_rank`` rows at
every site, so an adapter's rows are the same everywhere and any free chunks serve. Rows that nobody owns
hold zeros or the finite remains of an adapter that left; they are masked in every product. Chunks are physical
memory once they were loaded into, up to ``release``.

An adapter's extras (gains, norms, whole matrices) have no place in the arena: on a CPU the slot has the host image's
own tensors, which stay while a slot or the host tier has them. No load writes into them.

The slot table is the source of provenance: the digest in it was written together with the bytes, and
``verify`` shows that the bytes are still those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lorry.adapters.image.build import DeviceImage, row_sums
from lorry.adapters.image.extras import extra_sums
from lorry.engine.slot_table import SlotTable
from lorry.errors import AdapterLoadFailed, SlotIntegrity
from lorry.ids import AdapterKey, ChunkId, Generation
from lorry.layers.extras import AdapterExtras
from lorry.layers.memory_map import OS_PAGE, ZeroMap, runs_with_idle_neighbours
from lorry.layers.sites import SITE_SLICES, Site
from lorry.layers.spec import DecoderSpec
from lorry.models.decoder import SiteWeights
from lorry.scheduler.plan import SlotLoad

_SMALL_BYTES = 4 << 20
"""Extras that are read again whenever rank rows are; larger ones when they are loaded, and by the audit."""


@dataclass(frozen=True, slots=True)
class SlotEntry:
    """What was loaded: ``rows`` are arena rows in rank order, none for an adapter without LoRA; ``sums`` are their
    bytes' checksum, ``extra_sums`` that of ``extras``, tensor by tensor."""

    generation: Generation
    adapter: AdapterKey
    rows: tuple[int, ...]
    sums: tuple[int, ...]
    extras: AdapterExtras | None = None
    extra_sums: tuple[int | None, ...] = ()


class AdapterArena(SlotTable[SlotEntry]):
    """All adapters on the device."""

    _place = "arena row"

    def __init__(self, spec: DecoderSpec, chunks: int, chunk_rank: int) -> None:
        """Raises InvalidRequest where the system has no address range for ``chunks``."""
        super().__init__()
        self._spec = spec
        self._chunk_rank = self.chunk_rank = chunk_rank
        self._chunks = chunks
        self._maps: list[ZeroMap] = []
        rows = chunks * chunk_rank

        def zeros(*shape: int) -> Tensor:
            self._maps.append(ZeroMap(shape))
            return self._maps[-1].tensor

        self._a: dict[Site, Tensor] = {}
        self._b: dict[Site, tuple[Tensor, ...]] = {}
        for site, names in SITE_SLICES.items():
            width = spec.slice_shape(names[0])[1]
            self._a[site] = zeros(spec.layers, len(names), rows, width)
            self._b[site] = tuple(zeros(spec.layers, rows, spec.slice_shape(name)[0]) for name in names)
        self._sites = {
            (layer, site): SiteWeights(self._a[site][layer], tuple(b[layer] for b in self._b[site]))
            for layer in range(spec.layers)
            for site in Site
        }

    @staticmethod
    def chunk_bytes(spec: DecoderSpec, chunk_rank: int) -> int:
        return spec.lora_row_elements * chunk_rank * 4

    @property
    def sites(self) -> Mapping[tuple[int, Site], SiteWeights]:
        return self._sites

    def load(self, load: SlotLoad, image: DeviceImage, step: int) -> None:
        """Copies the image into its chunks, then publishes the slot. Raises AdapterLoadFailed, nothing
        published, where image and plan disagree or the host copy is damaged."""
        rows = [c * self._chunk_rank + i for c in load.chunks for i in range(self._chunk_rank)]
        if image.digest != load.adapter.digest or image.rank > len(rows) or image.dtype != torch.float32:
            raise AdapterLoadFailed(
                f"adapter {load.adapter}: the host image is {image.digest}, {image.dtype}, rank {image.rank}, for "
                f"{len(rows)} float32 rows"
            )
        self._slots.pop(load.slot, None)
        if rows:
            self._copy(rows, image)
        sums = self._sums(rows)
        if sums != image.sums or extra_sums(image.extras) != image.extra_sums:
            raise AdapterLoadFailed(f"adapter {load.adapter}: its copy in host memory is damaged; it is fetched again")
        entry = SlotEntry(load.generation, load.adapter, tuple(rows), sums, image.extras, image.extra_sums)
        self._publish(load.slot, entry, step)

    def _copy(self, rows: list[int], image: DeviceImage) -> None:
        every, used = _index(rows), _index(rows[: image.rank])
        for site in Site:
            self._a[site][:, :, every] = 0.0
            for target in self._b[site]:
                target[:, every] = 0.0
        for (layer, site), part in image.sites.items():
            self._a[site][layer][:, used] = part.a.transpose(0, 1)
            for target, source in zip(self._b[site], part.b, strict=True):
                if source is not None:
                    target[layer, used] = source

    def release(self, chunks: Iterable[ChunkId]) -> None:
        """Gives the memory behind chunks that no slot has back to the system; their rows read as zero from now on.
        Raises SlotIntegrity, nothing given back, where a slot has one of them.

        A chunk is a few kilobytes in each of hundreds of places; an OS page that it shares with a chunk in use stays
        physical, zeroed in part: of a chunk of 8 rows on SmolLM2 at most 0.7 of 9.8 MB, of an aligned pair nothing.
        """
        given = set(chunks)
        in_use = bytearray(self._chunks)
        for slot, entry in self._slots.items():
            for row in entry.rows:
                chunk = ChunkId(row // self._chunk_rank)
                if chunk in given:
                    raise SlotIntegrity(f"adapter chunk {chunk} was to be given back, but slot {slot} has it")
                in_use[chunk] = 1
        for zeros in self._maps:
            size = zeros.tensor.shape[-1] * self._chunk_rank * 4
            plane = size * self._chunks
            for (first, stop), (low, high) in runs_with_idle_neighbours(given, in_use, -(-OS_PAGE // size)):
                for at in range(0, zeros.bytes, plane):
                    zeros.zero(at + first * size, at + stop * size, (at + low * size, at + high * size))

    def _places(self, entry: SlotEntry) -> Iterable[int]:
        return entry.rows

    def _intact(self, entry: SlotEntry, whole: bool) -> bool:
        """Where not ``whole``, of extras only what is small: no load can have written into them, and a whole embedding
        takes long."""
        most_bytes = None if whole else _SMALL_BYTES
        if self._sums(entry.rows) != entry.sums:
            return False
        return all(
            found == want
            for found, want in zip(extra_sums(entry.extras, most_bytes), entry.extra_sums, strict=True)
            if found is not None
        )

    def _sums(self, rows: Sequence[int]) -> tuple[int, ...]:
        """As ``lorry.adapters.image.operand_sums``, of what lies in the rows now: swapped or overwritten bytes of
        another adapter change them."""
        if not rows:
            return (0,) * sum(2 * len(names) * self._spec.layers for names in SITE_SLICES.values())
        index = _index(rows)
        sums: list[Tensor] = []
        for site, names in SITE_SLICES.items():
            slices = [self._a[site][:, s] for s in range(len(names))]
            sums.extend(row_sums(operand[:, index]) for operand in (*slices, *self._b[site]))
        return tuple(torch.cat(sums).tolist())


def _index(rows: Sequence[int]) -> slice | Tensor:
    """A slice where the rows are one ascending run, which needs no copy."""
    low, high = rows[0], rows[-1] + 1
    return slice(low, high) if list(rows) == list(range(low, high)) else torch.tensor(rows)


__all__ = ["AdapterArena", "SlotEntry"]

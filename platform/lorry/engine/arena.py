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
from lorry.errors import AdapterLoadFailed, SlotIntegrity
from lorry.ids import AdapterDigest, ChunkId, Generation, SlotId
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
    digest: AdapterDigest
    rows: tuple[int, ...]
    sums: tuple[int, ...]
    extras: AdapterExtras | None = None
    extra_sums: tuple[int | None, ...] = ()


class AdapterArena:
    """All adapters on the device. One thread (the step loop) owns it."""

    def __init__(self, spec: DecoderSpec, chunks: int, chunk_rank: int) -> None:
        """Raises InvalidRequest where the system has no address range for ``chunks``."""
        self._spec = spec
        self._chunk_rank = chunk_rank
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
        self._slots: dict[SlotId, SlotEntry] = {}
        self._verified_at: dict[SlotId, int] = {}
        self._audited = SlotId(-1)

    @staticmethod
    def chunk_bytes(spec: DecoderSpec, chunk_rank: int) -> int:
        return spec.lora_row_elements * chunk_rank * 4

    @property
    def sites(self) -> Mapping[tuple[int, Site], SiteWeights]:
        return self._sites

    def entry(self, slot: SlotId) -> SlotEntry | None:
        return self._slots.get(slot)

    def slot_of(self, digest: AdapterDigest) -> SlotId:
        """Raises SlotIntegrity where no slot holds it."""
        for slot, entry in self._slots.items():
            if entry.digest == digest:
                return slot
        raise SlotIntegrity(f"no slot holds adapter {digest}")

    def load(self, load: SlotLoad, image: DeviceImage, step: int) -> None:
        """Copies the image into its chunks, then publishes the slot. Raises AdapterLoadFailed, nothing
        published, where image and plan disagree or the host copy is damaged."""
        rows = [c * self._chunk_rank + i for c in load.chunks for i in range(self._chunk_rank)]
        if image.digest != load.digest or image.rank > len(rows) or image.dtype != torch.float32:
            raise AdapterLoadFailed(
                f"adapter {load.digest}: the host image is {image.digest}, {image.dtype}, rank {image.rank}, for "
                f"{len(rows)} float32 rows"
            )
        self._slots.pop(load.slot, None)
        if rows:
            self._copy(rows, image)
        sums = self._sums(rows)
        if sums != image.sums or extra_sums(image.extras) != image.extra_sums:
            raise AdapterLoadFailed(f"adapter {load.digest}: its copy in host memory is damaged; it is fetched again")
        self._slots[load.slot] = SlotEntry(
            load.generation, load.digest, tuple(rows), sums, image.extras, image.extra_sums
        )
        self._verified_at[load.slot] = step

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

    def unload(self, slot: SlotId) -> None:
        self._slots.pop(slot, None)
        self._verified_at.pop(slot, None)

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

    def verify(self, slot: SlotId, step: int) -> None:
        """Reads the slot's bytes again and compares, once a step at most; of its extras only what is small, since no
        load can have written into them and a whole embedding takes long. Raises SlotIntegrity and unpublishes the slot
        where they changed."""
        entry = self._slots.get(slot)
        if entry is None:
            raise SlotIntegrity(f"slot {slot} is empty")
        if self._verified_at.get(slot) == step:
            return
        if not self._intact(entry, _SMALL_BYTES):
            self.unload(slot)
            raise SlotIntegrity(f"slot {slot}: its bytes are no longer those of adapter {entry.digest}")
        self._verified_at[slot] = step

    def audit(self) -> None:
        """As ``check_integrity``, but for the bytes of one slot, another each time: a few milliseconds, so that a
        request which comes meanwhile hardly waits."""
        self._check_rows()
        slots = sorted(self._slots)
        if slots:
            self._audited = next((slot for slot in slots if slot > self._audited), slots[0])
            self._check_bytes(self._audited)

    def check_integrity(self) -> None:
        """Every slot's bytes, and no row in two slots. Raises SlotIntegrity."""
        self._check_rows()
        for slot in self._slots:
            self._check_bytes(slot)

    def _check_rows(self) -> None:
        seen: dict[int, SlotId] = {}
        for slot, entry in list(self._slots.items()):
            for row in entry.rows:
                if seen.setdefault(row, slot) != slot:
                    raise SlotIntegrity(f"arena row {row} belongs to slots {seen[row]} and {slot}")

    def _check_bytes(self, slot: SlotId) -> None:
        entry = self._slots[slot]
        if not self._intact(entry):
            raise SlotIntegrity(f"slot {slot}: its bytes are no longer those of adapter {entry.digest}")

    def _intact(self, entry: SlotEntry, most_bytes: int | None = None) -> bool:
        """``most_bytes``: larger extras are passed over."""
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

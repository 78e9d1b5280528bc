"""The slot table: which adapter's bytes lie in which device slot, who uses them, and what may go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView
from dataclasses import dataclass, field

from lorry.errors import SlotIntegrity
from lorry.ids import AdapterDigest, Generation, RequestId, SlotId
from lorry.memory import ChunkGrant, MemoryLedger


@dataclass(slots=True, eq=False)
class Slot:
    """One row. Empty: ``digest`` and ``grant`` are None. ``last_step`` is the last step that may read the
    row; until it is done the row can neither be evicted nor filled."""

    slot: SlotId
    generation: Generation
    digest: AdapterDigest | None = None
    grant: ChunkGrant | None = None
    pins: set[RequestId] = field(default_factory=set)
    last_step: int = -1
    last_use: int = 0
    worth: float = 0.0

    @property
    def chunks(self) -> int:
        return 0 if self.grant is None else len(self.grant.chunks)


class SlotTable:
    """Fills, pins and empties slots. A fill counts the slot's generation up, so (slot, generation) names
    one loaded adapter for ever. Eviction order: least worth first (``EvictionClock``), which is least recently used
    first among equals; a pinned slot never goes."""

    def __init__(self, ledger: MemoryLedger, count: int) -> None:
        self._ledger = ledger
        self._rows = [Slot(SlotId(i), Generation(0)) for i in range(count)]
        self._by_digest: dict[AdapterDigest, Slot] = {}
        self._clock = 0
        self._unpinned_chunks = 0

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._rows)

    def __getitem__(self, slot: SlotId) -> Slot:
        return self._rows[slot]

    def find(self, digest: AdapterDigest) -> Slot | None:
        return self._by_digest.get(digest)

    @property
    def digests(self) -> KeysView[AdapterDigest]:
        """Digests of filled slots; at most one slot holds a digest."""
        return self._by_digest.keys()

    @property
    def unpinned_chunks(self) -> int:
        """Chunks of filled slots without a pin, whether or not a step in flight reads them."""
        return self._unpinned_chunks

    def pin(self, row: Slot, owner: RequestId) -> None:
        self._unpinned_chunks -= 0 if row.pins else row.chunks
        row.pins.add(owner)
        self._touch(row)

    def unpin(self, row: Slot, owner: RequestId, at_step: int) -> None:
        """``at_step``: the last step in which ``owner`` read the row."""
        row.pins.remove(owner)
        self._unpinned_chunks += 0 if row.pins else row.chunks
        row.last_step = max(row.last_step, at_step)
        self._touch(row)

    def fill(self, digest: AdapterDigest, chunks: int) -> Slot:
        """Take the lowest empty slot and ``chunks`` chunks; the caller has made the room."""
        row = next((r for r in self._rows if r.digest is None and self._settled(r)), None)
        grant = None if row is None else self._ledger.take_chunks(chunks)
        if row is None or grant is None:
            raise SlotIntegrity(f"adapter {digest}: a slot was filled although there is no room for it")
        row.digest, row.grant = digest, grant
        row.generation = Generation(row.generation + 1)
        self._by_digest[digest] = row
        self._unpinned_chunks += row.chunks
        self._touch(row)
        return row

    def empty(self, row: Slot) -> None:
        """Forget the row's adapter. Its chunks, and the row, are usable once its last step is done."""
        if row.digest is None or row.grant is None or row.pins:
            raise SlotIntegrity(f"slot {row.slot} is empty or pinned and cannot be emptied")
        self._unpinned_chunks -= row.chunks
        self._ledger.free_chunks(row.grant, row.last_step)
        del self._by_digest[row.digest]
        row.digest = row.grant = None

    def room(self, chunks: int, candidates: Iterable[Slot]) -> list[Slot] | None:
        """The fewest first of ``candidates``, in their order, whose going makes room for one adapter of
        ``chunks`` as far as slots and the adapters' ceiling go: [] if there is room already, None if all of them would
        not do. Whether the bytes are there is another question."""
        victims: list[Slot] = []
        free = self._ledger.chunk_ids_free
        empty = sum(1 for r in self._rows if r.digest is None and self._settled(r))
        for row in candidates:
            if free >= chunks and empty:
                break
            victims.append(row)
            free, empty = free + row.chunks, empty + 1
        if free < chunks or not empty:
            return None
        for row in list(victims):  # a small one taken before a large one may turn out not to be needed
            if free - row.chunks >= chunks and empty > 1:
                victims.remove(row)
                free, empty = free - row.chunks, empty - 1
        return victims

    def evictable(self) -> list[Slot]:
        """Filled, unpinned, and no step in flight reads it; least worth first."""
        idle = [r for r in self._rows if r.digest is not None and not r.pins and self._settled(r)]
        return sorted(idle, key=lambda r: (r.worth, r.last_use))

    def quietest(self) -> list[Slot]:
        """Every filled slot, fewest pins first, then least recently used: the order to drain them in."""
        return sorted((r for r in self._rows if r.digest is not None), key=lambda r: (len(r.pins), r.last_use))

    def check_integrity(self) -> None:
        """Raises SlotIntegrity where the table contradicts itself or the ledger."""
        chunks: set[int] = set()
        for row in self._rows:
            if (row.digest is None) != (row.grant is None) or (row.pins and row.digest is None):
                raise SlotIntegrity(f"slot {row.slot} is half empty: {row}")
            if row.digest is not None and self._by_digest.get(row.digest) is not row:
                raise SlotIntegrity(f"slot {row.slot} is not the one that its digest is found by")
            if row.grant is not None:
                if not chunks.isdisjoint(row.grant.chunks):
                    raise SlotIntegrity(f"slot {row.slot} shares an adapter chunk with another")
                chunks.update(row.grant.chunks)
        if len(self._by_digest) != sum(r.digest is not None for r in self._rows):
            raise SlotIntegrity("a digest is found in a slot that does not hold it")
        if self._unpinned_chunks != sum(row.chunks for row in self._rows if not row.pins):
            raise SlotIntegrity("the count of adapter chunks without a pin is wrong")
        if len(chunks) != self._ledger.use().chunks_used:
            raise SlotIntegrity("the ledger counts other adapter chunks in use than the slots hold")

    def _settled(self, row: Slot) -> bool:
        return row.last_step <= self._ledger.done_step

    def _touch(self, row: Slot) -> None:
        self._clock += 1
        row.last_use = self._clock
        size = row.chunks * self._ledger.split.chunk_bytes
        if size:
            row.worth = self._ledger.eviction.worth(size * self._ledger.costs.load_s_per_byte, size)


__all__ = ["Slot", "SlotTable"]

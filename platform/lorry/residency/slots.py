"""The slot table: which adapter's bytes lie in which device slot, who uses them, and what may go."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, KeysView
from dataclasses import dataclass, field
from enum import StrEnum

from lorry.errors import SlotIntegrity
from lorry.ids import AdapterKey, Generation, RequestId, SlotId
from lorry.memory import AdapterGrant, AdapterNeed, MemoryLedger


@dataclass(slots=True, eq=False)
class Slot:
    """One row. Empty: ``adapter`` and ``grant`` are None. ``size`` are the bytes of its chunks and extras.
    ``used_at``: when somebody was pinned or unpinned last (``time.monotonic``).
    ``last_step`` is the last step that may read the row; until it is done the row can neither be evicted nor filled."""

    slot: SlotId
    generation: Generation
    adapter: AdapterKey | None = None
    grant: AdapterGrant | None = None
    size: int = 0
    pins: set[RequestId] = field(default_factory=set)
    last_step: int = -1
    last_use: int = 0
    used_at: float = 0.0
    worth: float = 0.0

    @property
    def chunks(self) -> int:
        return 0 if self.grant is None else len(self.grant.chunks)

    @property
    def extra_bytes(self) -> int:
        return 0 if self.grant is None else self.grant.extra_bytes


class Shortage(StrEnum):
    """What is short where no slots that may go make room for an adapter: a slot, chunks, bytes of extras, or bytes of
    the share that adapters may have together."""

    SLOT = "slot"
    CHUNKS = "chunks"
    EXTRAS = "extras"
    BYTES = "bytes"


class SlotTable:
    """Fills, pins and empties slots. A fill counts the slot's generation up, so (slot, generation) names
    one loaded adapter for ever. Eviction order: least worth first (``EvictionClock``), which is least recently used
    first among equals; a pinned slot never goes."""

    def __init__(self, ledger: MemoryLedger, count: int) -> None:
        self._ledger = ledger
        self._rows = [Slot(SlotId(i), Generation(0)) for i in range(count)]
        self._by_adapter: dict[AdapterKey, Slot] = {}
        self._clock = 0
        self._unpinned_bytes = 0

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._rows)

    def __getitem__(self, slot: SlotId) -> Slot:
        return self._rows[slot]

    def find(self, adapter: AdapterKey) -> Slot | None:
        return self._by_adapter.get(adapter)

    @property
    def adapters(self) -> KeysView[AdapterKey]:
        """Those of filled slots; at most one slot holds a version."""
        return self._by_adapter.keys()

    @property
    def unpinned_bytes(self) -> int:
        """Of filled slots without a pin, whether or not a step in flight reads them."""
        return self._unpinned_bytes

    def pin(self, row: Slot, owner: RequestId) -> None:
        self._unpinned_bytes -= 0 if row.pins else row.size
        row.pins.add(owner)
        self._touch(row)

    def unpin(self, row: Slot, owner: RequestId, at_step: int) -> None:
        """``at_step``: the last step in which ``owner`` read the row."""
        row.pins.remove(owner)
        self._unpinned_bytes += 0 if row.pins else row.size
        row.last_step = max(row.last_step, at_step)
        self._touch(row)

    def fill(self, adapter: AdapterKey, need: AdapterNeed) -> Slot:
        """Take the lowest empty slot and the memory; the caller has made the room."""
        row = next((r for r in self._rows if r.adapter is None and self._settled(r)), None)
        grant = None if row is None else self._ledger.take_adapter(need)
        if row is None or grant is None:
            raise SlotIntegrity(f"adapter {adapter}: a slot was filled although there is no room for it")
        row.adapter, row.grant, row.size = adapter, grant, self._ledger.bytes_of(need)
        row.generation = Generation(row.generation + 1)
        self._by_adapter[adapter] = row
        self._unpinned_bytes += row.size
        self._touch(row)
        return row

    def empty(self, row: Slot) -> None:
        """Forget the row's adapter. Its memory, and the row, are usable once its last step is done."""
        if row.adapter is None or row.grant is None or row.pins:
            raise SlotIntegrity(f"slot {row.slot} is empty or pinned and cannot be emptied")
        self._unpinned_bytes -= row.size
        self._ledger.free_adapter(row.grant, row.last_step)
        del self._by_adapter[row.adapter]
        row.adapter, row.grant, row.size = None, None, 0

    def room(self, need: AdapterNeed, candidates: Iterable[Slot]) -> list[Slot] | None:
        """Of ``candidates``, the first in their order, and none too many, whose going makes room for one adapter as far
        as slots and the adapters' bounds go (on chunks, on extras, on both together): [] if there is room already, None
        if all of them would not do. Whether the bytes are there is another question."""
        ledger = self._ledger
        victims: list[Slot] = []
        chunks = ledger.chunk_ids_free - need.chunks
        extras = ledger.extra_bytes_free - need.extra_bytes
        both = ledger.adapter_bytes_free - ledger.bytes_of(need)
        empty = sum(1 for r in self._rows if r.adapter is None and self._settled(r)) - 1
        for row in candidates:
            if chunks >= 0 and extras >= 0 and both >= 0 and empty >= 0:
                break
            victims.append(row)
            chunks, extras, both, empty = chunks + row.chunks, extras + row.extra_bytes, both + row.size, empty + 1
        if chunks < 0 or extras < 0 or both < 0 or empty < 0:
            return None
        for row in list(victims):  # a small one taken before a large one may turn out not to be needed
            if chunks >= row.chunks and extras >= row.extra_bytes and both >= row.size and empty:
                victims.remove(row)
                chunks, extras, both, empty = chunks - row.chunks, extras - row.extra_bytes, both - row.size, empty - 1
        return victims

    def shortage(self, need: AdapterNeed, candidates: Iterable[Slot]) -> Shortage:
        """Where ``room`` answers None: what is short although all candidates went."""
        ledger, going = self._ledger, list(candidates)
        if not going and all(row.adapter is not None or not self._settled(row) for row in self._rows):
            return Shortage.SLOT
        if ledger.chunk_ids_free + sum(row.chunks for row in going) < need.chunks:
            return Shortage.CHUNKS
        if ledger.extra_bytes_free + sum(row.extra_bytes for row in going) < need.extra_bytes:
            return Shortage.EXTRAS
        return Shortage.BYTES

    def evictable(self) -> list[Slot]:
        """Filled, unpinned, and no step in flight reads it; least worth first."""
        idle = [r for r in self._rows if r.adapter is not None and not r.pins and self._settled(r)]
        return sorted(idle, key=lambda r: (r.worth, r.last_use))

    def quietest(self) -> list[Slot]:
        """Every filled slot, fewest pins first, then least recently used: the order to drain them in."""
        return sorted((r for r in self._rows if r.adapter is not None), key=lambda r: (len(r.pins), r.last_use))

    def check_integrity(self) -> None:
        """Raises SlotIntegrity where the table contradicts itself or the ledger."""
        chunks: set[int] = set()
        extras = 0
        for row in self._rows:
            if (row.adapter is None) != (row.grant is None) or (row.pins and row.adapter is None):
                raise SlotIntegrity(f"slot {row.slot} is half empty: {row}")
            if row.adapter is not None and self._by_adapter.get(row.adapter) is not row:
                raise SlotIntegrity(f"slot {row.slot} is not the one that its adapter is found by")
            if row.grant is not None:
                if not chunks.isdisjoint(row.grant.chunks):
                    raise SlotIntegrity(f"slot {row.slot} shares an adapter chunk with another")
                chunks.update(row.grant.chunks)
                extras += row.grant.extra_bytes
            if row.size != self._ledger.bytes_of(AdapterNeed(row.chunks, row.extra_bytes)):
                raise SlotIntegrity(f"slot {row.slot} has other bytes than its chunks and extras")
        if len(self._by_adapter) != sum(r.adapter is not None for r in self._rows):
            raise SlotIntegrity("an adapter is found in a slot that does not hold it")
        if self._unpinned_bytes != sum(row.size for row in self._rows if not row.pins):
            raise SlotIntegrity("the count of adapters' bytes without a pin is wrong")
        use = self._ledger.use()
        if len(chunks) != use.chunks_used:
            raise SlotIntegrity("the ledger counts other adapter chunks in use than the slots hold")
        if extras != use.extras_used:
            raise SlotIntegrity("the ledger counts other bytes of extras in use than the slots hold")

    def _settled(self, row: Slot) -> bool:
        return row.last_step <= self._ledger.done_step

    def _touch(self, row: Slot) -> None:
        self._clock += 1
        row.last_use, row.used_at = self._clock, time.monotonic()
        # Per byte all adapters are as dear to restore, those without any too. Not by size / size: the rounding would
        # put equals in another order than that of their last use.
        row.worth = self._ledger.eviction.worth(self._ledger.costs.load_s_per_byte, 1)


__all__ = ["Shortage", "Slot", "SlotTable"]

"""Room for KV pages and adapters, made by letting idle things go: cached prefixes and idle adapters, by one cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from lorry.ids import SlotId
from lorry.kvcache import PrefixIndex
from lorry.memory import MemoryLedger
from lorry.residency import Residency, Slot
from lorry.residency.host import R


class Reclaimer(Generic[R]):
    """Knows both kinds of idle memory; what it empties is told to ``on_unload`` for the next plan."""

    def __init__(
        self,
        ledger: MemoryLedger,
        index: PrefixIndex,
        residency: Residency[R],
        on_unload: Callable[[SlotId], None],
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._residency = residency
        self._on_unload = on_unload

    def in_reach(self, pages: int, adapter_bytes: int = 0) -> bool:
        """Whether there would be room if all that is idle went: False rules it out, at little cost."""
        ledger, split, unused = self._ledger, self._ledger.split, self._index.evictable
        if ledger.page_ids_free + unused < pages:
            return False
        have = ledger.bytes_free + unused * split.page_bytes + self._residency.unpinned_bytes
        return have >= pages * split.page_bytes + adapter_bytes

    def secure(
        self, pages: int, *, adapter_bytes: int = 0, victims: Sequence[Slot] = (), spare: int = 0, force: bool = False
    ) -> bool:
        """Make room for ``pages`` and an adapter's bytes more, counting what ``victims`` (idle slots that the caller
        will empty) give. False, and as a rule nothing changed, where that cannot be had now, or would leave less than
        ``spare`` pages that could be had too. ``force``: adapters that somebody waits for may go as well."""
        ledger, split = self._ledger, self._ledger.split
        want = pages * split.page_bytes + adapter_bytes - sum(row.size for row in victims)
        total = pages + spare
        if ledger.page_ids_free >= total and ledger.bytes_free >= want + spare * split.page_bytes:
            return True
        if not self.in_reach(total, adapter_bytes):
            return False
        idle = [row for row in self._residency.idle(force=force) if row.size and row not in victims]
        idle_bytes = sum(row.size for row in idle)
        can_ids = ledger.page_ids_free + self._index.evictable
        can_bytes = ledger.bytes_free + self._index.evictable * split.page_bytes + idle_bytes
        if can_ids < total or can_bytes < want + spare * split.page_bytes:
            return False
        while ledger.page_ids_free < pages or ledger.bytes_free < want:
            if not self._evict_one(idle, ids=ledger.page_ids_free < pages):
                return False
        return True

    def _evict_one(self, idle: list[Slot], *, ids: bool) -> bool:
        """``ids``: page ids are wanted, which adapters do not have."""
        cached = self._index.cheapest()
        if idle and not ids and (cached is None or idle[0].worth <= cached):
            row = idle.pop(0)
            self._residency.evict(row)
            self._on_unload(row.slot)
            return True
        if cached is None:
            return False
        self._index.evict()
        return True


__all__ = ["Reclaimer"]

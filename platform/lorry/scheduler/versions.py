"""One adapter version among everything that is scheduled: where it is, and how it goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from lorry.errors import FailedPrecondition, LorryError, SlotIntegrity
from lorry.ids import AdapterKey, SlotId
from lorry.kvcache import PrefixIndex
from lorry.residency import Cause, Residency
from lorry.residency.host import R
from lorry.scheduler.entry import Place
from lorry.scheduler.live import LiveRequests


class Versions(Generic[R]):
    """A part of the scheduler, on its thread. ``unloaded`` is told of a slot that is empty now."""

    def __init__(
        self,
        index: PrefixIndex,
        residency: Residency[R],
        live: LiveRequests[R],
        unloaded: Callable[[SlotId], None],
    ) -> None:
        self._index = index
        self._residency = residency
        self._live = live
        self._unloaded = unloaded

    def tier_of(self, adapter: AdapterKey) -> str:
        """Where a request for it would find it: ``device``, ``host``, ``disk`` or ``object_store``."""
        return self._residency.tier_of(adapter)

    def live_on(self, adapter: AdapterKey) -> int:
        """Requests that run or wait on it."""
        return sum(entry.adapter == adapter for entry in self._live)

    def lost(self, adapter: AdapterKey) -> None:
        """The device no longer holds what it loaded as ``adapter``, and nobody knows since when: who has anything from
        it ends, preempted or not, and what was computed with it is not found in the prefix index any more. Its slot is
        emptied, so that the next request loads the version again."""
        self._index.drop(adapter)
        for entry in [e for e in self._live if e.adapter == adapter and e.run is not None]:
            run = entry.run
            if entry.place is not Place.WAITING or (run is not None and (run.output or run.scored)):
                text = f"adapter {adapter}: its bytes on the device changed while this answer was made"
                self._live.end(entry.request.request_id, SlotIntegrity(text))
        self._empty_slot(adapter, Cause.FAULT)

    def evict(self, adapter: AdapterKey) -> bool:
        """Take it off the device; False where it is not there. Raises FailedPrecondition while requests run or wait on
        it."""
        if live := self.live_on(adapter):
            raise FailedPrecondition(f"adapter {adapter}: {live} requests run or wait on it; wait until they end")
        return self._empty_slot(adapter)

    def forget(self, adapter: AdapterKey, error: LorryError) -> tuple[int, int]:
        """End every request on it with ``error``; its slot is empty and its prefixes are not found any more. How many
        slots and pages that were."""
        for request_id in [entry.request.request_id for entry in self._live if entry.adapter == adapter]:
            self._live.end(request_id, error)
        pages = self._index.drop(adapter)
        return int(self._empty_slot(adapter)), pages

    def _empty_slot(self, adapter: AdapterKey, cause: Cause = Cause.ASKED) -> bool:
        slot = self._residency.lose(adapter, cause)
        if slot is not None:
            self._unloaded(slot)
        return slot is not None


__all__ = ["Versions"]

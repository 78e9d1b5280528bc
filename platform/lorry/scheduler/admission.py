"""Which waiting request runs next."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Generic

from lorry.ids import AdapterDigest, SequenceId, TenantId
from lorry.kvcache import BlockTables
from lorry.memory import MemoryLedger
from lorry.residency import AdapterState, Placement, Residency
from lorry.residency.host import R
from lorry.scheduler.ageing import Ageing, AgeingBound
from lorry.scheduler.entry import Entry, Lack
from lorry.scheduler.waiting import WaitingQueue

_LOOKAHEAD = 8
"""How far down a lane a request that needs fewer pages is looked for."""


@dataclass(frozen=True, slots=True)
class Admitted(Generic[R]):
    """It has its pages promised and its slot pinned. ``placement`` None: the base."""

    entry: Entry[R]
    sequence: SequenceId
    placement: Placement | None


class Admission(Generic[R]):
    """Admits one request at a time: pages and pin, all or nothing.

    Tenants take turns; within a tenant the oldest request that can run goes first. A request that lacks
    pages, a slot or adapter chunks is passed over and tried again in the next plan. Once it was passed over
    for the ageing bound it starves, and until it runs

    - it is tried before everything else, and may empty slots that are held but not pinned;
    - later arrivals do not get what it lacks: no pages (so none of them is admitted), or no slot: none of
      them is loaded, and none is admitted to the slots that were chosen to drain for it.

    So it runs at the latest when the sequences that then run on those slots (or hold those pages) have
    ended, whatever arrives meanwhile. Others that starve follow, a tenant at a turn.
    """

    def __init__(
        self,
        waiting: WaitingQueue[R],
        ledger: MemoryLedger,
        tables: BlockTables,
        residency: Residency[R],
        bound: AgeingBound,
    ) -> None:
        self._waiting = waiting
        self._ledger = ledger
        self._tables = tables
        self._residency = residency
        self._ageing: Ageing[R] = Ageing(bound, self._lacks_only_room)
        self._turns: deque[TenantId] = deque()
        self._tightest: int | None = None
        self._plan = 0
        self._now = 0.0

    @property
    def starving(self) -> Entry[R] | None:
        return self._ageing.starving

    def begin(self, plan: int, now: float) -> None:
        """A new plan: every tenant has its turn again."""
        self._plan, self._now = plan, now
        self._turns = deque(self._waiting.in_turn())
        self._tightest = None
        self._choose_starving()

    def take(self, sequence: SequenceId, *, nothing_runs: bool) -> Admitted[R] | None:
        """Admit the next request as ``sequence``. None: no other can be admitted in this plan."""
        starving = self.starving
        if starving is not None:
            admitted = self._try(starving, sequence, force=True)
            if isinstance(admitted, Admitted):
                self._choose_starving()
                return admitted
            self._passed_over(starving, admitted)
        while self._turns:
            tenant = self._turns.popleft()
            admitted_next = self._take_from(tenant, sequence, force=nothing_runs)
            if admitted_next is not None:
                self._turns.append(tenant)
                return admitted_next
        return None

    def forget(self, entry: Entry[R]) -> None:
        """A waiting request ended; it is out of the queue already."""
        self._ageing.forget(entry)

    def _take_from(self, tenant: TenantId, sequence: SequenceId, *, force: bool) -> Admitted[R] | None:
        for lane in self._waiting.fronts(tenant, self._residency.resident):
            for entry in islice(lane.entries, _LOOKAHEAD):
                if entry is self.starving:
                    continue
                admitted = self._try(entry, sequence, force=force)
                if isinstance(admitted, Admitted):
                    return admitted
                self._passed_over(entry, admitted)
                if admitted is Lack.ROOM:
                    break
        return None

    def _try(self, entry: Entry[R], sequence: SequenceId, *, force: bool) -> Admitted[R] | Lack:
        lack = self._yields_to_starving(entry)
        if lack is not None:
            return lack
        if entry.pages > self._ledger.pages_promisable:
            return Lack.PAGES
        placement: Placement | None = None
        if entry.digest is not None:
            placement = self._place(entry, entry.digest, force)
            if placement is None:
                return Lack.ROOM
        self._tables.open(sequence, entry.tokens)
        self._waiting.remove(entry)
        self._waiting.served(entry.request.tenant)
        self.forget(entry)
        if placement is not None and placement.loaded:
            self._waiting.refile(placement.digest)
        return Admitted(entry, sequence, placement)

    def _place(self, entry: Entry[R], digest: AdapterDigest, force: bool) -> Placement | None:
        load = digest not in self._residency.resident
        need = self._residency.chunks_of(digest) if load else 0
        if load and not force and self._tightest is not None and need >= self._tightest:
            return None  # room only shrinks within a plan, and this much was not there
        placement = self._residency.pin(entry.request.request_id, force=force)
        if placement is None and not force:
            self._tightest = need
        return placement

    def _yields_to_starving(self, entry: Entry[R]) -> Lack | None:
        first = self.starving
        if first is None or entry.arrival <= first.arrival:
            return None
        if first.lack is Lack.PAGES:
            return Lack.PAGES
        digest = entry.digest
        if digest is None or (digest in self._residency.resident and not self._residency.is_draining(digest)):
            return None
        return Lack.ROOM

    def _passed_over(self, entry: Entry[R], lack: Lack) -> None:
        self._ageing.passed_over(entry, lack, self._plan, self._now)
        # Again once nothing is left to drain: what was drained may have gone to an earlier arrival.
        if entry is self.starving and lack is Lack.ROOM and entry.digest is not None and self._residency.drained:
            self._residency.drain(entry.digest)

    def _choose_starving(self) -> None:
        before = self.starving
        if self._ageing.choose(self._waiting.in_turn(), self._plan, self._now) is not before:
            self._residency.stop_draining()

    def _lacks_only_room(self, entry: Entry[R]) -> bool:
        digest = entry.digest
        return digest is None or self._residency.state_of(digest) in (AdapterState.ON_HOST, AdapterState.RESIDENT)


__all__ = ["Admission", "Admitted"]

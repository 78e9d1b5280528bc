"""Which waiting request runs next."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Generic

from lorry.errors import InternalError
from lorry.ids import AdapterKey, SequenceId, TenantId
from lorry.kvcache import Block, BlockTables, PrefixIndex
from lorry.memory import AdapterNeed, MemoryLedger
from lorry.residency import AdapterState, Placement, Residency, Shortage
from lorry.residency.host import R
from lorry.scheduler.ageing import Ageing, AgeingBound
from lorry.scheduler.entry import Entry, Lack
from lorry.scheduler.reasons import (
    NO_BYTES,
    NO_EXTRAS,
    NO_PAGES,
    NO_RANK_ROWS,
    NO_SHARE,
    NO_SLOT,
    YIELDS_MEMORY,
    YIELDS_ROOM,
    Shortfall,
)
from lorry.scheduler.reclaim import Reclaimer
from lorry.scheduler.waiting import WaitingQueue

_LOOKAHEAD = 8
"""How many requests behind the fronts of a tenant's lanes are tried: one of them may need fewer pages."""
_PASSES = 64
"""A plan looks no further once it has passed over so many requests and tenants; the next one goes on with the tenant
after these."""
_SKIP = 0.25
"""Of a pass: what it counts to see that a lane needs no less than one that found no room in this plan."""
_NO_ROOM = {
    Shortage.SLOT: NO_SLOT,
    Shortage.CHUNKS: NO_RANK_ROWS,
    Shortage.EXTRAS: NO_EXTRAS,
    Shortage.BYTES: NO_SHARE,
}


@dataclass(frozen=True, slots=True)
class Admitted(Generic[R]):
    """It has its pages promised and its slot pinned. ``placement`` None: the base. ``blocks``: its prefix that is
    cached."""

    entry: Entry[R]
    sequence: SequenceId
    placement: Placement | None
    blocks: list[Block]


@dataclass(frozen=True, slots=True)
class Devices(Generic[R]):
    """What an admitted request gets a part of."""

    ledger: MemoryLedger
    tables: BlockTables
    index: PrefixIndex
    residency: Residency[R]
    reclaimer: Reclaimer[R]


class Admission(Generic[R]):
    """Admits one request at a time: pages and pin, all or nothing.

    Tenants take turns by their weights (``Turns``); within a tenant the first in rank that can run goes first. A
    request that lacks memory or a slot is passed over and tried again in the next plan. Once it was passed over
    for the ageing bound it starves, and until it runs

    - it is tried before everything else, and may empty slots that are held but not pinned;
    - later arrivals do not get what it lacks: no memory (so none of them is admitted), or no slot: none of
      them is loaded, and none is admitted to the slots that were chosen to drain for it.

    So it runs at the latest when the sequences that then run on those slots (or hold that memory) have
    ended, whatever arrives meanwhile. Others that starve follow, a tenant at a turn.

    With ``overcommit`` a request needs the pages of the ids that it has, and one more; a page for each sequence that
    runs must then be left, or growth would preempt it at once. Without, it needs the pages of its longest.
    """

    def __init__(
        self, waiting: WaitingQueue[R], devices: Devices[R], bound: AgeingBound, *, overcommit: bool = False
    ) -> None:
        self._waiting = waiting
        self._devices = devices
        self._residency = devices.residency
        self._overcommit = overcommit
        self._ageing: Ageing[R] = Ageing(bound, self._lacks_only_room)
        self._turns: deque[TenantId] = deque()
        self._next: TenantId | None = None
        self._passes_left = 0.0
        self._tight: list[tuple[AdapterNeed, Shortfall]] = []
        self._plan = 0
        self._now = 0.0

    @property
    def starving(self) -> Entry[R] | None:
        return self._ageing.starving

    def begin(self, plan: int, now: float) -> None:
        """A new plan: every tenant has its turn again."""
        self._plan, self._now = plan, now
        self._turns = deque(self._waiting.in_turn())
        if self._next is not None and self._next in self._turns:
            self._turns.rotate(-self._turns.index(self._next))
        self._next, self._passes_left = None, _PASSES
        self._tight = []
        self._choose_starving()

    def take(self, sequence: SequenceId, *, running: int) -> Admitted[R] | None:
        """Admit the next request as ``sequence``, beside so many that run. None: no other can be, in this plan."""
        starving = self.starving
        if starving is not None:
            admitted = self._try(starving, sequence, running, force=True)
            if isinstance(admitted, Admitted):
                self._choose_starving()
                return admitted
            self._passed_over(starving, admitted)
        while self._turns:
            if running and self._passes_left <= 0:
                self._next = self._turns[0]
                break
            tenant = self._turns.popleft()
            admitted_next = self._take_from(tenant, sequence, running)
            if admitted_next is not None:
                self._waiting.turns.put_back(tenant, self._turns)
                return admitted_next
            self._passes_left -= 1
        return None

    def forget(self, entry: Entry[R]) -> None:
        """A waiting request ended; it is out of the queue already."""
        self._ageing.forget(entry)

    def _take_from(self, tenant: TenantId, sequence: SequenceId, running: int) -> Admitted[R] | None:
        behind = _LOOKAHEAD
        for lane in self._waiting.fronts(tenant, self._residency.resident):
            tight = self._too_tight(lane.need, force=not running)
            if tight is not None:
                head = lane.entries[0]
                if head is not self.starving:
                    self._note(head, tight)
                    if head.lack is not Lack.ROOM:
                        self._passed_over(head, tight)
                self._passes_left -= _SKIP
                continue
            for number, entry in enumerate(islice(lane.entries, 1 + behind)):
                behind -= number > 0
                if entry is self.starving:
                    continue
                admitted = self._try(entry, sequence, running, force=not running)
                if isinstance(admitted, Admitted):
                    return admitted
                self._passed_over(entry, admitted)
                if admitted.lack is Lack.ROOM:
                    break
        return None

    def _try(self, entry: Entry[R], sequence: SequenceId, running: int, *, force: bool) -> Admitted[R] | Shortfall:
        lack = self._yields_to_starving(entry)
        if lack is not None:
            return lack
        devices = self._devices
        run = entry.run
        known = len(entry.request.prompt) + (len(run.output) if run is not None else 0)
        request = entry.request
        unscored = (
            request.output.prompt_logprobs is not None and not request.choice if run is None else run.wants_scores
        )
        blocks = devices.index.acquire(entry.keys[: known // devices.tables.page_tokens]) if not unscored else []
        most = min(known + 1, entry.tokens) if self._overcommit else entry.tokens
        own = devices.ledger.pages_for(most) - len(blocks)
        spare = running if self._overcommit else 0
        placement: Placement | None = None
        if entry.adapter is not None:
            found = self._place(entry, entry.adapter, own, spare, force)
            placement, lack = (found, None) if isinstance(found, Placement) else (None, found)
        elif not devices.reclaimer.secure(own, spare=spare, force=force):
            lack = NO_PAGES
        if lack is not None:
            devices.index.release(blocks, -1)
            return lack
        if not devices.tables.open(sequence, own, [block.page for block in blocks]):
            raise InternalError(f"sequence {sequence}: room was made for {own} KV pages and is not there")
        self._waiting.remove(entry)
        self._waiting.served(entry.request.tenant)
        self.forget(entry)
        if placement is not None and placement.loaded:
            self._waiting.refile(placement.adapter)
        return Admitted(entry, sequence, placement, blocks)

    def _place(self, entry: Entry[R], adapter: AdapterKey, own: int, spare: int, force: bool) -> Placement | Shortfall:
        """Pin its slot beside ``own`` pages that can be had."""
        residency, reclaimer = self._residency, self._devices.reclaimer
        owner = entry.request.request_id
        if adapter in residency.resident:
            if not reclaimer.in_reach(own + spare):
                return NO_PAGES
            pinned = residency.pin(owner)
            if pinned is not None and reclaimer.secure(own, spare=spare, force=force):
                return pinned
            residency.unpin(owner, -1)
            return NO_PAGES
        need = residency.need_of(adapter)
        tight = self._too_tight(need, force=force)
        if tight is not None:
            return tight
        victims = residency.room_for(owner, force=force)
        if victims is None:
            short = _NO_ROOM[residency.shortage(owner, force=force)]
            if not force:
                self._tight = [(need, short), *(row for row in self._tight if not row[0].covers(need))]
            return short
        size = self._devices.ledger.bytes_of(need)
        if not reclaimer.secure(own, adapter_bytes=size, victims=victims, spare=spare, force=force):
            return NO_BYTES if reclaimer.in_reach(own + spare) else NO_PAGES
        return residency.pin(owner, victims=victims) or NO_BYTES

    def _too_tight(self, need: AdapterNeed | None, *, force: bool) -> Shortfall | None:
        """What was short when room for it, or for one that needs no more of anything, was not found in this plan, in
        which it only shrinks; None where that has not happened."""
        if force or need is None:
            return None
        return next((short for found, short in self._tight if need.covers(found)), None)

    def _yields_to_starving(self, entry: Entry[R]) -> Shortfall | None:
        first = self.starving
        if first is None or entry.arrival <= first.arrival:
            return None
        if first.lack is Lack.MEMORY:
            return YIELDS_MEMORY
        adapter = entry.adapter
        if adapter is None or (adapter in self._residency.resident and not self._residency.is_draining(adapter)):
            return None
        return YIELDS_ROOM

    def _note(self, entry: Entry[R], short: Shortfall) -> None:
        entry.judged, entry.reason = self._plan, short.reason

    def _passed_over(self, entry: Entry[R], short: Shortfall) -> None:
        self._note(entry, short)
        self._passes_left -= 1
        self._ageing.passed_over(entry, short.lack, self._plan, self._now)
        # Again once nothing is left to drain: what was drained may have gone to an earlier arrival.
        if entry is self.starving and short.lack is Lack.ROOM and entry.adapter is not None and self._residency.drained:
            self._residency.drain(entry.adapter)

    def _choose_starving(self) -> None:
        before = self.starving
        if self._ageing.choose(self._waiting.in_turn(), self._plan, self._now) is not before:
            self._residency.stop_draining()

    def _lacks_only_room(self, entry: Entry[R]) -> bool:
        adapter = entry.adapter
        return adapter is None or self._residency.state_of(adapter) in (AdapterState.ON_HOST, AdapterState.RESIDENT)


__all__ = ["Admission", "Admitted", "Devices"]

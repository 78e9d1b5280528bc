"""Why each request waits, by the plan that was made last."""

from __future__ import annotations

from typing import Generic

from lorry.residency import AdapterState, Residency
from lorry.residency.host import R
from lorry.scheduler.entry import Entry, Lack, Place
from lorry.scheduler.reasons import WaitReason
from lorry.scheduler.waiting import WaitingQueue


class LastPlan(Generic[R]):
    """``number``: of the plan, from 1; ``closed``: why it admitted nobody more."""

    def __init__(self, waiting: WaitingQueue[R], residency: Residency[R]) -> None:
        self._waiting = waiting
        self._residency = residency
        self._arrivals = 0
        self.number = 0
        self.closed = WaitReason.TURN

    def begin(self, arrivals: int) -> None:
        """The next plan, which looks at requests that came before the ``arrivals``-th."""
        self.number += 1
        self._arrivals, self.closed = arrivals, WaitReason.KV_PAGES

    def reason_of(self, entry: Entry[R]) -> WaitReason:
        """Of one that waits."""
        if entry.place is not Place.WAITING:
            return WaitReason.FIRST_CHOICE if entry.place is Place.FOLLOWING else WaitReason.RESUMING
        adapter, here = entry.adapter, (AdapterState.ON_HOST, AdapterState.RESIDENT)
        if adapter is not None and self._residency.state_of(adapter) not in here:
            return WaitReason.ADAPTER_LOAD
        if entry.arrival >= self._arrivals:
            return WaitReason.ARRIVED
        head = self._waiting.head_of(entry)
        for judged in (entry, head):  # those of a lane wait for the same room
            mine = judged is entry or judged.lack is Lack.ROOM
            if mine and judged.judged == self.number and judged.reason is not None:
                return judged.reason
        return self.closed


__all__ = ["LastPlan"]

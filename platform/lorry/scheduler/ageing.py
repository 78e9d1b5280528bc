"""No starvation: how long a request may be passed over for want of device room."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic

from lorry.ids import RequestId, TenantId
from lorry.residency.host import R
from lorry.scheduler.entry import Entry, Lack


@dataclass(frozen=True, slots=True)
class AgeingBound:
    """Passed over in this many plans, or for this long, whichever comes first, a request starves."""

    plans: int = 32
    seconds: float = 1.0


class Ageing(Generic[R]):
    """Requests that were passed over, by tenant, the longest passed over first.

    One request starves at a time; the tenants' turns decide whose, so that many of one tenant that starve
    do not go before one of another. ``eligible`` says whether room on the device is still what an entry
    lacks: one whose version left the host starts anew.
    """

    def __init__(self, bound: AgeingBound, eligible: Callable[[Entry[R]], bool]) -> None:
        self.bound = bound
        self._eligible = eligible
        self._blocked: dict[TenantId, dict[RequestId, Entry[R]]] = {}
        self._starving: Entry[R] | None = None

    @property
    def starving(self) -> Entry[R] | None:
        """As ``choose`` left it, until it is forgotten."""
        return self._starving

    def passed_over(self, entry: Entry[R], lack: Lack, plan: int, now: float) -> None:
        entry.lack = lack
        rows = self._blocked.setdefault(entry.request.tenant, {})
        if entry.request.request_id not in rows:
            entry.blocked_plan, entry.blocked_at = plan, now
            rows[entry.request.request_id] = entry

    def forget(self, entry: Entry[R]) -> None:
        """It was admitted, or it ended, or it waits for its fetch again."""
        entry.lack = None
        rows = self._blocked.get(entry.request.tenant)
        if rows is not None and rows.pop(entry.request.request_id, None) is not None and not rows:
            del self._blocked[entry.request.tenant]
        if entry is self._starving:
            self._starving = None

    def choose(self, turns: Iterable[TenantId], plan: int, now: float) -> Entry[R] | None:
        """Who starves: the same as before while it does, else the longest passed over of the first tenant in
        ``turns`` that has one over the bound."""
        if self._starving is not None:
            if self._eligible(self._starving):
                return self._starving
            self.forget(self._starving)
        for tenant in turns if self._blocked else ():
            entry = self._oldest(tenant)
            if entry is not None and self._over(entry, plan, now):
                self._starving = entry
                break
        return self._starving

    def _oldest(self, tenant: TenantId) -> Entry[R] | None:
        while rows := self._blocked.get(tenant):
            entry = next(iter(rows.values()))
            if self._eligible(entry):
                return entry
            self.forget(entry)
        return None

    def _over(self, entry: Entry[R], plan: int, now: float) -> bool:
        return plan - entry.blocked_plan >= self.bound.plans or now - entry.blocked_at >= self.bound.seconds


__all__ = ["Ageing", "AgeingBound"]

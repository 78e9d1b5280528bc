"""What a gateway knows of its requests, as operators and tenants ask for it: a few that failed or took long lately, and
those that it holds back. In memory, of one process, bounded; never a prompt or an answer."""

from __future__ import annotations

import time
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from lorry.ids import AdapterDigest, RequestId, TenantId
from lorry.scheduler.reasons import WaitReason

FAILED_KEPT = 64
SLOW_KEPT = 32
"""Of one tenant."""
TENANTS_KEPT = 256
"""Beyond these the tenant of which nothing happened for longest is forgotten."""
SLOW_S = 3600.0
"""How long ago a slow request may have ended."""
NAME_MAX = 200
OK, CANCELLED = "OK", "CANCELLED"


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """``tenant`` and its name "": nobody was authenticated. ``model``: as the request wrote it; ``version``: what that
    was resolved to, "" for the base or where it never was. Times are Unix seconds, durations None where it ended
    before. ``output_tokens``: handed to the transport."""

    request_id: str
    tenant: str
    tenant_name: str
    model: str
    version: str
    adapter_sha256: str
    outcome: str
    replica: str
    started_at: float
    ended_at: float
    queue_s: float | None = None
    adapter_load_s: float | None = None
    prefill_s: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def duration_s(self) -> float:
        return max(0.0, self.ended_at - self.started_at)


@dataclass(slots=True)
class _OfTenant:
    """``slow``: by duration, the shortest first."""

    failed: deque[EndedRequest] = field(default_factory=lambda: deque(maxlen=FAILED_KEPT))
    slow: list[EndedRequest] = field(default_factory=list)


class RecentRequests:
    """Belongs to one event loop. Each tenant has a part of its own, so that one whose requests all fail hides nothing
    of others, and what one asks for its own does not depend on what others do (but beyond ``TENANTS_KEPT``)."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._tenants: OrderedDict[str, _OfTenant] = OrderedDict()

    def note(self, ended: EndedRequest) -> None:
        """What a client cancelled may have taken too long for it: it counts among the slow ones, not the failed."""
        own = self._tenants.setdefault(ended.tenant, _OfTenant())
        self._tenants.move_to_end(ended.tenant)
        while len(self._tenants) > TENANTS_KEPT:
            self._tenants.popitem(last=False)
        if ended.outcome not in (OK, CANCELLED):
            own.failed.append(ended)
            return
        slow = own.slow
        if len(slow) >= SLOW_KEPT and ended.duration_s <= slow[0].duration_s:
            if self._fresh(slow[0]):
                return
            own.slow = slow = [one for one in slow if self._fresh(one)]
        insort(slow, ended, key=lambda one: one.duration_s)
        if len(slow) > SLOW_KEPT:
            own.slow = [one for one in slow if self._fresh(one)][-SLOW_KEPT:]

    def failed(self, tenant: str | None = None) -> list[EndedRequest]:
        """Of one tenant, or of all (None); the latest first."""
        rows = chain.from_iterable(own.failed for own in self._of(tenant))
        return sorted(rows, key=lambda one: -one.ended_at)

    def slow(self, tenant: str | None = None) -> list[EndedRequest]:
        """Of one tenant, or of all (None); the longest first."""
        rows = chain.from_iterable(own.slow for own in self._of(tenant))
        return sorted((one for one in rows if self._fresh(one)), key=lambda one: -one.duration_s)

    def _of(self, tenant: str | None) -> list[_OfTenant]:
        if tenant is None:
            return list(self._tenants.values())
        own = self._tenants.get(tenant)
        return [] if own is None else [own]

    def _fresh(self, one: EndedRequest) -> bool:
        return one.ended_at > self._now() - SLOW_S


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request that waits in the gateway. ``seconds``: so far."""

    request_id: str
    tenant: TenantId
    version: str
    adapter_sha256: AdapterDigest | None
    reason: WaitReason
    seconds: float
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class CalledAs:
    """What the gateway knows of a request that is in an engine. ``request_id``: the client's."""

    request_id: str
    version: str


class Desk(Protocol):
    """A gateway (``lorry.gateway.desk.GatewayDesk``)."""

    @property
    def recent(self) -> RecentRequests: ...

    def held(self) -> Sequence[HeldRequest]:
        """What waits before it is given to an engine."""
        ...

    def called(self) -> Mapping[RequestId, CalledAs]:
        """What is in engines, by the id that they know."""
        ...


__all__ = [
    "CANCELLED", "FAILED_KEPT", "NAME_MAX", "OK", "SLOW_KEPT", "SLOW_S", "TENANTS_KEPT", "CalledAs", "Desk",
    "EndedRequest", "HeldRequest", "RecentRequests",
]  # fmt: skip

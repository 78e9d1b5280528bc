"""Requests that wait to be admitted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Set
from itertools import chain
from typing import Generic

from lorry.errors import InternalError
from lorry.ids import AdapterKey, TenantId
from lorry.memory import AdapterNeed
from lorry.residency.host import R
from lorry.scheduler.entry import Entry
from lorry.scheduler.turns import Turns

Rank = tuple[int, int]
NeedClass = tuple[int, int]
_LANES_PER_CLASS = 4
_LOADABLE_LANES = 32
"""Of a tenant, that one plan looks at: the first by rank, of so many lanes a class, or fewer where there are many
classes."""


def class_of(need: AdapterNeed) -> NeedClass:
    """Needs of one class differ by less than a factor of two, in chunks and in bytes of extras: so there are few of
    them, however many sizes adapters have."""
    return need.chunks.bit_length(), need.extra_bytes.bit_length()


class Lane(Generic[R]):
    """One tenant's waiting requests for one adapter version (or the base), by rank: priority, then arrival.

    ``need``: what its version, which is on the host and in no slot, must find room for; else None. ``filed``: (class
    of the need, rank of the head) under which the tenant's list of loadable lanes has it.
    """

    __slots__ = ("adapter", "entries", "filed", "need", "tenant")

    def __init__(self, tenant: TenantId, adapter: AdapterKey | None) -> None:
        self.tenant = tenant
        self.adapter = adapter
        self.entries: deque[Entry[R]] = deque()
        self.need: AdapterNeed | None = None
        self.filed: tuple[NeedClass, Rank] | None = None

    @property
    def head(self) -> Rank:
        return self.entries[0].rank


class _Tenant(Generic[R]):
    __slots__ = ("lanes", "loadable", "waiting")

    def __init__(self) -> None:
        self.lanes: dict[AdapterKey | None, Lane[R]] = {}
        self.loadable: dict[NeedClass, list[tuple[Rank, AdapterKey]]] = {}
        self.waiting = 0


class WaitingQueue(Generic[R]):
    """Why not one deque: a plan must find, for each tenant, the oldest requests that could run now, at a
    cost that does not grow with the queue. Requests of a lane wait for the same thing, so only a lane's
    front is looked at; lanes whose version must be loaded first are filed by the class of what they need, because
    where the first ones of a class find no room the others hardly will; lanes whose version is not on the host are not
    looked at.

    Order: within a lane by rank, between a tenant's lanes by their heads' rank, between tenants by ``turns``. A
    preempted request comes back with the rank that it had.
    """

    def __init__(self, load_need: Callable[[AdapterKey], AdapterNeed | None]) -> None:
        """``load_need``: what it takes to load a version that is on the host and in no slot, else None. Call
        ``refile`` whenever its answer may have changed."""
        self._load_need = load_need
        self._tenants: dict[TenantId, _Tenant[R]] = {}
        self._wanting: dict[AdapterKey, dict[TenantId, Lane[R]]] = {}
        self._size = 0
        self.turns = Turns()

    def __len__(self) -> int:
        return self._size

    def push(self, entry: Entry[R]) -> None:
        tenant_id, adapter = entry.request.tenant, entry.adapter
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            tenant = self._tenants[tenant_id] = _Tenant()
            self.turns.join(tenant_id)
        lane = tenant.lanes.get(adapter)
        if lane is None:
            lane = tenant.lanes[adapter] = Lane(tenant_id, adapter)
            if adapter is not None:
                self._wanting.setdefault(adapter, {})[tenant_id] = lane
        if not lane.entries or lane.entries[-1].rank < entry.rank:
            lane.entries.append(entry)
        else:
            lane.entries.insert(bisect_left(lane.entries, entry.rank, key=lambda e: e.rank), entry)
        tenant.waiting += 1
        self._size += 1
        self._file(tenant, lane)

    def remove(self, entry: Entry[R]) -> None:
        tenant_id, adapter = entry.request.tenant, entry.adapter
        tenant = self._tenants[tenant_id]
        lane = tenant.lanes[adapter]
        if lane.entries[0] is entry:
            lane.entries.popleft()
        else:
            lane.entries.remove(entry)
        tenant.waiting -= 1
        self._size -= 1
        self._file(tenant, lane)
        if not lane.entries:
            del tenant.lanes[adapter]
            if adapter is not None:
                del self._wanting[adapter][tenant_id]
                if not self._wanting[adapter]:
                    del self._wanting[adapter]
        if not tenant.lanes:
            del self._tenants[tenant_id]
            self.turns.leave(tenant_id)

    def refile(self, adapter: AdapterKey) -> None:
        """The version moved: between absent, host and device."""
        for tenant_id, lane in self._wanting.get(adapter, {}).items():
            self._file(self._tenants[tenant_id], lane)

    def wanting(self, adapter: AdapterKey) -> list[Entry[R]]:
        """Everything that waits for the version, of all tenants."""
        return [entry for lane in self._wanting.get(adapter, {}).values() for entry in lane.entries]

    def head_of(self, entry: Entry[R]) -> Entry[R]:
        """The first in its lane."""
        return self._tenants[entry.request.tenant].lanes[entry.adapter].entries[0]

    def in_turn(self) -> list[TenantId]:
        """Tenants with waiting requests, the one whose turn is next first."""
        return self.turns.order()

    def served(self, tenant_id: TenantId) -> None:
        if tenant_id in self._tenants:
            self.turns.served(tenant_id)

    def fronts(self, tenant_id: TenantId, resident: Set[AdapterKey]) -> list[Lane[R]]:
        """The tenant's lanes that may be able to run: of the base and of resident versions all, of loadable
        ones the first few of each class of need, and of these the first; by their heads' rank."""
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            return []
        lanes = tenant.lanes
        found: list[Lane[R]] = [lanes[None]] if None in lanes else []
        if len(lanes) <= len(resident):
            found.extend(lane for adapter, lane in lanes.items() if adapter in resident)
        else:
            found.extend(lanes[adapter] for adapter in resident if adapter in lanes)
        loadable = tenant.loadable
        each = min(_LANES_PER_CLASS, 1 + 2 * _LOADABLE_LANES // (1 + len(loadable)))
        rows = [row for filed in loadable.values() for row in filed[:each]]
        if len(rows) > _LOADABLE_LANES:
            rows.sort()
            del rows[_LOADABLE_LANES:]
        found.extend(lanes[adapter] for _, adapter in rows)
        found.sort(key=lambda lane: lane.head)
        return found

    def waiting_of(self, tenant_id: TenantId) -> int:
        tenant = self._tenants.get(tenant_id)
        return 0 if tenant is None else tenant.waiting

    def counts(self) -> dict[TenantId, int]:
        return {tenant_id: tenant.waiting for tenant_id, tenant in self._tenants.items()}

    def entries(self) -> Iterator[Entry[R]]:
        return chain.from_iterable(lane.entries for t in self._tenants.values() for lane in t.lanes.values())

    def check_integrity(self) -> None:
        """Raises InternalError where an index contradicts the lanes."""
        total = 0
        self.turns.check_integrity(set(self._tenants))
        for tenant_id, tenant in self._tenants.items():
            filed = 0
            for adapter, lane in tenant.lanes.items():
                ranks = [entry.rank for entry in lane.entries]
                if not ranks or ranks != sorted(set(ranks)):
                    raise InternalError(f"tenant {tenant_id}: a lane is empty or out of order")
                if adapter is not None and self._wanting[adapter][tenant_id] is not lane:
                    raise InternalError(f"tenant {tenant_id}: a lane is not found by its adapter")
                need = None if adapter is None else self._load_need(adapter)
                if lane.need != need or lane.filed != (None if need is None else (class_of(need), ranks[0])):
                    raise InternalError(f"tenant {tenant_id}: a lane is filed under {lane.filed}, needs {need}")
                if lane.filed is not None and adapter is not None:
                    filed += (ranks[0], adapter) in tenant.loadable[lane.filed[0]]
                total += len(ranks)
            if filed != sum(len(rows) for rows in tenant.loadable.values()):
                raise InternalError(f"tenant {tenant_id}: the list of loadable lanes has a stale row")
            if tenant.waiting != sum(len(lane.entries) for lane in tenant.lanes.values()):
                raise InternalError(f"tenant {tenant_id}: the count of waiting requests is wrong")
        if total != self._size:
            raise InternalError("the count of waiting requests is wrong")

    def _file(self, tenant: _Tenant[R], lane: Lane[R]) -> None:
        adapter = lane.adapter
        if adapter is None:
            return
        need = self._load_need(adapter) if lane.entries else None
        lane.need = need
        filed = None if need is None else (class_of(need), lane.head)
        if filed == lane.filed:
            return
        if lane.filed is not None:
            rows = tenant.loadable[lane.filed[0]]
            del rows[bisect_left(rows, (lane.filed[1], adapter))]
            if not rows:
                del tenant.loadable[lane.filed[0]]
        if filed is not None:
            insort(tenant.loadable.setdefault(filed[0], []), (filed[1], adapter))
        lane.filed = filed


__all__ = ["Lane", "WaitingQueue", "class_of"]

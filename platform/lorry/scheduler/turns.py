"""Whose turn it is: stride scheduling over the tenants that wait."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from math import lcm

from lorry.errors import InternalError
from lorry.ids import TenantId
from lorry.request import WEIGHT_MAX

_STRIDE = lcm(*range(1, WEIGHT_MAX + 1))
"""Of weight 1. Every weight divides it, so that shares are exact however long a queue lives."""

_Row = tuple[int, int, TenantId]
"""Pass, a number that counts up, tenant."""


@dataclass(slots=True)
class _Live:
    """How many requests of a tenant live, and the weight that the newest of them stated."""

    requests: int
    weight: int


@dataclass(slots=True)
class _Peers:
    """Tenants of one weight that wait: how many, and the pass of the last in their order."""

    count: int = 0
    last: int = 0


class Turns:
    """Stride scheduling (C. A. Waldspurger and W. E. Weihl, "Stride Scheduling: Deterministic Proportional-Share
    Resource Management", MIT/LCS/TM-528, 1995). The tenant with the lowest *pass* is next; its turn raises its pass by
    its stride, which is shorter the larger its weight is. The *global pass* is the highest at which one was served.

    - Who comes is put a stride behind the global pass, and who was passed over is served as if its pass were that: to
      have nothing that waits, or nothing that can run, gains no credit.
    - Of equal weights the one that was served longest ago is next, always.
    - Light tenants that came together would all be served in a row, and then the heavy one as often. So a turn also
      puts a tenant behind the last of its weight by an even part of their stride. That costs each less than a turn,
      once.

    Of N turns, while the same k tenants wait and all can run, each has its share, which is N * weight / sum of
    weights, less at most 2, and beside it at most 2 * k * weight / sum of weights.
    """

    def __init__(self) -> None:
        self._live: dict[TenantId, _Live] = {}
        self._rows: dict[TenantId, _Row] = {}
        self._order: list[_Row] = []
        self._weights: dict[TenantId, int] = {}
        self._peers: dict[int, _Peers] = {}
        self._global = 0
        self._number = 0

    def began(self, tenant: TenantId, weight: int) -> None:
        """A request of it lives from now on and states its weight."""
        live = self._live.setdefault(tenant, _Live(0, weight))
        live.requests += 1
        live.weight = weight
        if self._weights.get(tenant, weight) != weight:
            self._reweigh(tenant, weight)

    def ended(self, tenant: TenantId) -> None:
        live = self._live[tenant]
        live.requests -= 1
        if not live.requests:
            del self._live[tenant]

    def weight_of(self, tenant: TenantId) -> int:
        live = self._live.get(tenant)
        return 1 if live is None else live.weight

    def join(self, tenant: TenantId) -> None:
        """It has something that waits from now on."""
        weight = self.weight_of(tenant)
        peers = self._peers.get(weight)
        at = self._global + _STRIDE // weight
        self._put(tenant, weight, at if peers is None else max(at, peers.last))

    def leave(self, tenant: TenantId) -> None:
        """Nothing of it waits."""
        weight = self._weights.pop(tenant)
        row = self._rows.pop(tenant)
        del self._order[bisect_left(self._order, row)]
        self._peers[weight].count -= 1
        if not self._peers[weight].count:
            del self._peers[weight]

    def served(self, tenant: TenantId) -> None:
        """It had a turn; it waits."""
        weight, peers = self._weights[tenant], self._peers[self._weights[tenant]]
        self._global = max(self._global, self._rows[tenant][0])
        stride = _STRIDE // weight
        at = self._global + stride
        if peers.count > 1:
            at = max(at, min(peers.last + stride // peers.count, self._global + 2 * stride))
        self.leave(tenant)
        self._put(tenant, weight, at)

    def order(self) -> list[TenantId]:
        """Those that wait, the next one first."""
        return [tenant for _, _, tenant in self._order]

    def put_back(self, tenant: TenantId, turns: deque[TenantId]) -> None:
        """Into what is left of an ``order``, of which it was taken for its turn."""
        row, rows = self._rows.get(tenant), self._rows
        if row is None or self._order[-1] is row:
            turns.append(tenant)
            return
        places = (at for at, other in enumerate(turns) if other in rows and rows[other] > row)
        turns.insert(next(places, len(turns)), tenant)

    def live(self) -> dict[TenantId, int]:
        """How many requests of each tenant live."""
        return {tenant: live.requests for tenant, live in self._live.items()}

    def check_integrity(self, waiting: set[TenantId]) -> None:
        """Raises InternalError unless these wait, in order, and none is further behind than its weight says."""
        if not waiting == self._rows.keys() == self._weights.keys() or sorted(self._rows.values()) != self._order:
            raise InternalError("the tenants' turns are out of order, or of others than those that wait")
        for tenant, (at, _, _) in self._rows.items():
            if at > self._global + 2 * _STRIDE // self._weights[tenant]:
                raise InternalError(f"tenant {tenant}: its turn is later than its weight says")
        if sum(peers.count for peers in self._peers.values()) != len(self._rows):
            raise InternalError("the count of tenants by weight is wrong")

    def _put(self, tenant: TenantId, weight: int, at: int) -> None:
        self._number += 1
        row = (at, self._number, tenant)
        self._rows[tenant] = row
        self._weights[tenant] = weight
        insort(self._order, row)
        peers = self._peers.setdefault(weight, _Peers())
        peers.count += 1
        peers.last = max(peers.last, at)

    def _reweigh(self, tenant: TenantId, weight: int) -> None:
        """It waits on: what it had left of its stride is left of the new one."""
        left = max(self._rows[tenant][0] - self._global, 0) * self._weights[tenant] // weight
        self.leave(tenant)
        self._put(tenant, weight, self._global + left)


__all__ = ["Turns"]

"""The gate that requests pass: rate, tokens and seats of their tenant's quota and of their adapter's, all or nothing.

Rate and seats are each gateway's own: with several of them, each lets in as many. A month's tokens are shared by leases
(``lorry.registry.leases``). No SQL here, and no waiting where there is room.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from lorry.engine.contract import EngineRequest
from lorry.errors import LorryError, Unavailable
from lorry.gateway.limits.patience import Patience
from lorry.gateway.limits.quotas import LiveQuota
from lorry.gateway.limits.rate import RateBucket
from lorry.gateway.limits.seats import SeatKeeper
from lorry.gateway.limits.tokens import Reservation, TokenBudget
from lorry.gateway.limits.upkeep import RENEW_S, ROUND_TRIP_S, Leases, TokenUpkeep
from lorry.gateway.ports import SnapshotSource
from lorry.ids import RequestId
from lorry.registry.entries import QuotaEntry
from lorry.registry.leases.terms import Charge
from lorry.registry.tables import ByTenant
from lorry.scheduler.reasons import WaitReason

LOOK_S = 0.2
"""Those that wait learn of changed limits so late."""
_log = logging.getLogger(__name__)


class Hold:
    """What one request holds. ``request`` is the engine's, its times shortened by what it waited here."""

    __slots__ = ("_billed", "_buckets", "_keeper", "_quotas", "_reservations", "_seated", "request")

    def __init__(self, request: EngineRequest, keeper: SeatKeeper, quotas: Sequence[LiveQuota] = ()) -> None:
        self.request = request
        self._keeper = keeper
        self._quotas = quotas
        self._buckets: list[RateBucket] = []
        self._reservations: Sequence[Reservation] = ()
        self._seated = False
        self._billed = 0

    @property
    def charges(self) -> tuple[Charge, ...]:
        """For the request's row in the ledger."""
        return tuple(one.charge for one in self._reservations if one.charge is not None)

    def billed(self, tokens: int) -> None:
        """The ledger was given so many: they are used up, the rest of what was reserved comes back. Of several bills,
        of which the ledger keeps one, the largest counts here."""
        self._billed = max(self._billed, tokens)

    def stand_up(self) -> None:
        """Gives the seats back, where the engine has nothing to do for the request any more. Idempotent."""
        if self._seated:
            self._seated = False
            self._keeper.leave([quota.seats for quota in self._quotas])

    def end(self) -> None:
        """Idempotent."""
        reservations, self._reservations = self._reservations, ()
        for reservation in reservations:
            reservation.settle(self._billed)
        self.stand_up()

    def refuse(self) -> None:
        """It was not let in after all: nothing was taken."""
        self.end()
        for bucket in self._buckets:
            bucket.give_back()

    def begin(self) -> None:
        """Takes a request of each bucket."""
        self._buckets = [quota.bucket for quota in self._quotas if quota.bucket is not None]
        for bucket in self._buckets:
            bucket.take()

    def reserved(self, reservations: Sequence[Reservation]) -> None:
        self._reservations = reservations

    def seated(self) -> None:
        self._seated = True


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a request waits here, and how long so far."""

    reason: WaitReason
    seconds: float


class Limits:
    """Belongs to one event loop. ``run`` beside the requests, then ``close``. ``leases`` None refuses requests under a
    month's tokens. ``now``: Unix seconds; ``clock``: seconds that never go back."""

    def __init__(
        self,
        source: SnapshotSource,
        leases: Leases | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._clock = clock
        self._quotas: dict[str, LiveQuota] = {}
        self._keeper = SeatKeeper()
        self._table: ByTenant[QuotaEntry] | None = None
        self._waits: dict[Hold, tuple[WaitReason, float]] = {}
        self.tokens = TokenUpkeep(leases, now, clock)

    def state(self) -> dict[str, int]:
        """Bounded: the number of quotas that something is kept of, of leases, of requests that wait for a seat."""
        quotas = self._quotas.values()
        return {
            "quotas": len(quotas),
            "leases": sum(budget.leases() for budget in self.tokens.budgets.values()),
            "waiting": self._keeper.waiting,
        }

    def waits(self) -> Mapping[RequestId, Wait]:
        """What waits now, the longest first."""
        now = self._clock()
        return {hold.request.request_id: Wait(why, now - since) for hold, (why, since) in self._waits.items()}

    def check(self, tenant: str, adapter_id: str) -> int | None:
        """Most output tokens of one request, None for no cap. Takes nothing, but raises QuotaExceeded where ``hold``
        would now: due before a request costs anything. ``adapter_id`` is "" for a base."""
        quotas, now = self._of(tenant, adapter_id), self._clock()
        for quota in quotas:
            quota.check_rate(now)
            quota.check_seats()
        caps = [quota.entry.max_tokens_cap for quota in quotas if quota.entry.max_tokens_cap is not None]
        return min(caps, default=None)

    def take(self, tenant: str, adapter_id: str) -> None:
        """One request of the minute's, for what needs no engine. Raises QuotaExceeded where there is none."""
        quotas, now = self._of(tenant, adapter_id), self._clock()
        for quota in quotas:
            quota.check_rate(now)
        for quota in quotas:
            if quota.bucket is not None:
                quota.bucket.take()

    @asynccontextmanager
    async def hold(self, tenant: str, adapter_id: str, request: EngineRequest) -> AsyncIterator[Hold]:
        """The block runs while the request holds its share of both quotas; what is not ``billed`` in it comes back.

        Raises QuotaExceeded, with the time after which there may be room; TokenBudgetSpent; DeadlineExceeded,
        QueueTimeout or TtftTimeout where it waited too long for its turn; Unavailable where the registry does not say
        whether there are tokens. A refusal leaves nothing taken.
        """
        quotas = self._of(tenant, adapter_id)
        hold = Hold(request, self._keeper, quotas)
        if quotas:
            await self._enter(hold, quotas)
        try:
            yield hold
        finally:
            hold.end()

    async def run(self) -> None:
        """Renews leases and follows changed limits until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.tokens.run())
            group.create_task(self._follow())

    async def close(self) -> None:
        """After the last request: gives leases back."""
        await self.tokens.close()

    def look(self) -> None:
        """Follows the newest snapshot: those that wait get what changed limits give them."""
        table, now = self._source.current().tables.quotas, self._clock()
        if table is self._table:
            return
        self._table = table
        for quota in tuple(self._quotas.values()):
            entry = table.get(quota.entry.tenant, {}).get(quota.entry.adapter)
            if entry is not None and entry.id == quota.entry.id:
                quota.change(entry, now)
            else:
                quota.lift()
                self._quotas.pop(quota.entry.id)
            self._keep_budget(quota)
            self._keeper.look([quota.seats])

    def tidy(self) -> None:
        """Forgets quotas of which nothing is kept that a new one would not be."""
        now = self._clock()
        for quota in [quota for quota in self._quotas.values() if quota.unused(now)]:
            del self._quotas[quota.entry.id]
            self.tokens.forget(quota.entry.id)

    async def _follow(self) -> None:
        tidy_at = self._clock() + RENEW_S
        while True:
            try:
                self.look()
                if self._clock() >= tidy_at:
                    tidy_at = self._clock() + RENEW_S
                    self.tidy()
            except LorryError as error:
                _log.warning("limits cannot be followed: %s", error)
            except Exception:  # those that wait must be seated once this has passed
                _log.exception("limits cannot be followed")
            await asyncio.sleep(LOOK_S)

    def _of(self, tenant: str, adapter_id: str) -> list[LiveQuota]:
        entries = self._source.current().tables.quotas.get(tenant)
        if not entries:
            return []
        keys = ("", adapter_id) if adapter_id else ("",)
        return [self._live(entry) for key in keys if (entry := entries.get(key)) is not None]

    def _live(self, entry: QuotaEntry) -> LiveQuota:
        quota = self._quotas.get(entry.id)
        if quota is None:
            quota = self._quotas[entry.id] = LiveQuota(entry, self._clock())
            self._keep_budget(quota)
        elif quota.entry is not entry:
            quota.change(entry, self._clock())
            self._keep_budget(quota)
            self._keeper.look([quota.seats])
        return quota

    def _keep_budget(self, quota: LiveQuota) -> None:
        if quota.budget is None:
            self.tokens.forget(quota.entry.id)
        else:
            self.tokens.budgets[quota.entry.id] = quota.budget

    async def _enter(self, hold: Hold, quotas: Sequence[LiveQuota]) -> None:
        now = self._clock()
        patience = Patience(hold.request, now)
        for quota in quotas:
            quota.check_rate(now)
            quota.check_seats()
        hold.begin()
        try:
            waited = await self._reserve(hold, quotas, patience)
            if not self._keeper.take([quota.seats for quota in quotas]):
                waited = True
                with self._noted(hold, WaitReason.QUOTA_CONCURRENCY):
                    await self._seats(quotas, patience)
            hold.seated()
            if waited:
                hold.request = patience.after(self._clock())
        except BaseException:  # a cancelled caller too gives everything back
            hold.refuse()
            raise

    async def _reserve(self, hold: Hold, quotas: Sequence[LiveQuota], patience: Patience) -> bool:
        """Whether it took time."""
        budgets = _budgets(quotas)
        if not budgets:
            return False
        request = hold.request
        tokens = len(request.prompt) + request.n * request.stopping.max_tokens
        found = self.tokens.reserve(budgets, tokens)
        if found is not None:
            hold.reserved(found)
            return False
        with self._noted(hold, WaitReason.QUOTA_TOKENS):
            hold.reserved(await self._tokens(quotas, budgets, tokens, patience))
        return True

    @contextmanager
    def _noted(self, hold: Hold, reason: WaitReason) -> Iterator[None]:
        self._waits[hold] = reason, self._clock()
        try:
            yield
        finally:
            del self._waits[hold]

    async def _tokens(
        self, quotas: Sequence[LiveQuota], budgets: Sequence[TokenBudget], tokens: int, patience: Patience
    ) -> list[Reservation]:
        for quota in quotas:
            quota.check_tokens(tokens, self._clock())
        left = patience.left(self._clock())
        hurried = left is not None and left < ROUND_TRIP_S
        try:
            found = await self.tokens.wait(budgets, tokens, left if left is not None and hurried else ROUND_TRIP_S)
        except LorryError:
            if hurried and patience.left(self._clock()) == 0.0:
                raise patience.over() from None
            raise
        if found is not None:
            return found
        if _budgets(quotas) != budgets:
            raise Unavailable("quota: its limits changed while the request waited; try again", retry_after_s=0.1)
        now = self._clock()
        for quota in quotas:
            quota.check_tokens(tokens, now)
        lacking = [quota for quota in quotas if quota.budget is not None and quota.budget.at_hand(now) < tokens]
        raise (lacking or quotas)[0].held(tokens)

    async def _seats(self, quotas: Sequence[LiveQuota], patience: Patience) -> None:
        for quota in quotas:
            quota.check_seats()
        left = patience.left(self._clock())
        try:
            async with asyncio.timeout(left):
                await self._keeper.wait([quota.seats for quota in quotas])
        except TimeoutError:
            raise patience.over() from None


def _budgets(quotas: Sequence[LiveQuota]) -> list[TokenBudget]:
    return [quota.budget for quota in quotas if quota.budget is not None]


__all__ = ["LOOK_S", "Hold", "Limits", "Wait"]

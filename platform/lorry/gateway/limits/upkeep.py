"""Keeps this gateway's leases of tokens: renewed in the background, in batches, so that requests find them there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from lorry.errors import LorryError, Unavailable
from lorry.gateway.limits.tokens import Reservation, TokenBudget
from lorry.registry.leases.months import month_of
from lorry.registry.leases.terms import LEASE_S, LeaseAnswer, LeaseAsk

RENEW_S = LEASE_S / 3
"""Between regular renewals, with room for two that fail."""
ROUND_TRIP_S = 3.0
"""A request waits no longer for a lease."""
DRY_S = 1.0
"""What a quota had not is not asked for again for so long."""
BATCH = 100
"""Leases renewed in one transaction."""
_BETWEEN_S = 0.02
_log = logging.getLogger(__name__)


class Leases(Protocol):
    """``lorry.registry.leases.service.LeaseService``."""

    async def take(self, holder: str, asks: Sequence[LeaseAsk]) -> list[LeaseAnswer]: ...

    async def settle(self, used: Mapping[str, int]) -> None: ...


class _Waiter:
    __slots__ = ("answer", "budgets", "tokens")

    def __init__(self, budgets: Sequence[TokenBudget], tokens: int) -> None:
        self.budgets = budgets
        self.tokens = tokens
        self.answer: asyncio.Future[list[Reservation] | LorryError | None] = asyncio.get_running_loop().create_future()


class TokenUpkeep:
    """``now``: Unix seconds, which say the month. ``clock``: seconds that never go back. Belongs to one event loop."""

    def __init__(self, leases: Leases | None, now: Callable[[], float], clock: Callable[[], float]) -> None:
        self._leases = leases
        self._now = now
        self._clock = clock
        self._holder = f"gw_{uuid.uuid4().hex}"
        self._waiters: list[_Waiter] = []
        self._wake = asyncio.Event()
        self._renewed_at = float("-inf")
        self.budgets: dict[str, TokenBudget] = {}
        """By quota id: those that have, or may want, a lease."""
        self._due: dict[str, TokenBudget] = {}

    def reserve(self, budgets: Sequence[TokenBudget], tokens: int) -> list[Reservation] | None:
        """Of all of them, or of none: then some lease at hand has not so many."""
        month, now = month_of(self._now()), self._clock()
        made: list[Reservation] = []
        for budget in budgets:
            found = budget.reserve(tokens, month, now)
            if found is None:
                undo(budgets, made)
                return None
            made.append(found)
            if budget.low(now):
                self._ask(budget)
        return made

    async def wait(self, budgets: Sequence[TokenBudget], tokens: int, seconds: float) -> list[Reservation] | None:
        """As ``reserve``, after a round trip to the registry that begins after this call. Those that wait for the same
        one come first, in the order of their calls. Cancelled, it leaves nothing reserved.

        Raises Unavailable where the registry has not answered after ``seconds``.
        """
        if self._leases is None:
            raise Unavailable("quota: this gateway has no registry to take a month's tokens from; give it one")
        waiter = _Waiter(budgets, tokens)
        for budget in budgets:
            budget.pending.append(tokens)
            self._ask(budget)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                answer = await waiter.answer
        except BaseException as error:  # a cancelled caller too no longer waits
            self._take_back(waiter)
            if isinstance(error, TimeoutError):
                raise no_answer() from None
            raise
        finally:
            for budget in budgets:
                budget.pending.remove(tokens)
        if isinstance(answer, LorryError):
            raise answer
        return answer

    async def run(self) -> None:
        """Until cancelled, whatever one round meets."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._renewed_at + RENEW_S - self._clock())):
                    await self._wake.wait()
            await self.round(self._clock() >= self._renewed_at + RENEW_S)
            await asyncio.sleep(_BETWEEN_S)

    async def round(self, renewing: bool) -> None:
        """One exchange with the registry: of everything if ``renewing``, else of what is asked for."""
        self._wake.clear()
        waiters, self._waiters = self._waiters, []
        due, self._due = (self.budgets if renewing else self._due), {}
        error: LorryError | None = None
        try:
            if renewing:
                self._renewed_at = self._clock()
            month = month_of(self._now())
            await self._exchange([ask for budget in tuple(due.values()) for ask in budget.asks(month, renewing)])
            if renewing:
                await self._settle([one.ended() for one in tuple(due.values())])
        except LorryError as refused:
            _log.warning("leases of tokens cannot be renewed: %s", refused)
            error = refused
        except Exception:  # leases must outlive whatever one round meets
            _log.exception("leases of tokens cannot be renewed")
            error = no_answer()
        finally:
            for waiter in waiters:
                if not waiter.answer.done():
                    waiter.answer.set_result(self.reserve(waiter.budgets, waiter.tokens) or error)

    def forget(self, quota_id: str) -> None:
        """Its quota limits no tokens any more, or nothing is kept of it."""
        self.budgets.pop(quota_id, None)
        self._due.pop(quota_id, None)

    async def close(self) -> None:
        """Gives all leases back. What the registry does not take now it takes back when they expire."""
        try:
            await self._settle([one.let_go() for one in tuple(self.budgets.values())])
        except LorryError as error:
            _log.warning("leases of tokens stay until they expire: %s", error)

    async def _exchange(self, asks: Sequence[LeaseAsk]) -> None:
        for start in range(0, len(asks), BATCH):
            batch, asked_at = asks[start : start + BATCH], self._clock()
            assert self._leases is not None, "nobody could have waited"
            for ask, answer in zip(batch, await self._leases.take(self._holder, batch), strict=True):
                if (budget := self.budgets.get(ask.quota_id)) is not None:
                    budget.answered(ask, answer, asked_at, self._clock() + DRY_S)

    async def _settle(self, ended: Iterable[Mapping[str, int]]) -> None:
        used = {lease_id: tokens for one in ended for lease_id, tokens in one.items()}
        if used and self._leases is not None:
            await self._leases.settle(used)

    def _ask(self, budget: TokenBudget) -> None:
        self._due[budget.quota_id] = budget
        self._wake.set()

    def _take_back(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if waiter.answer.done() and not waiter.answer.cancelled():
            made = waiter.answer.result()  # it came in the same moment
            if isinstance(made, list):
                undo(waiter.budgets, made)


def undo(budgets: Sequence[TokenBudget], made: Sequence[Reservation]) -> None:
    for budget, reservation in zip(budgets, made, strict=False):
        budget.undo(reservation)


def no_answer() -> Unavailable:
    return Unavailable("quota: the registry does not answer, and no tokens of the month are at hand; try again",
                       retry_after_s=1.0)  # fmt: skip


__all__ = ["BATCH", "DRY_S", "RENEW_S", "ROUND_TRIP_S", "Leases", "TokenUpkeep", "no_answer", "undo"]

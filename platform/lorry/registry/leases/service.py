"""Granting, renewing and ending leases."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from lorry.registry.db.engine import Database
from lorry.registry.db.tables import QuotaLease
from lorry.registry.leases import repository
from lorry.registry.leases.terms import LEASE_S, LeaseAnswer, LeaseAsk, Standing


class LeaseService:
    """For gateways. ``clock``: Unix seconds. Raises Unavailable where the database does not answer; what was asked for
    may then hold or not, and asking again does it once."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def take(self, holder: str, asks: Sequence[LeaseAsk]) -> list[LeaseAnswer]:
        """Renews each lease with as much as is wanted and free, in one transaction; answers in the order of ``asks``.
        ``holder`` names the gateway, 64 characters at most. Leases of the same quotas that have expired end first."""
        if not asks:
            return []
        now = self._clock()
        async with self._database.write() as session:
            quotas = await repository.lock_quotas(session, {ask.quota_id for ask in asks})
            leases = {lease.id: lease for lease in await repository.leases_of(session, quotas)}
            for lease in [lease for lease in leases.values() if repository.expired(lease, now)]:
                await repository.end(session, leases.pop(lease.id))
            limits = {row.id: row.tokens_per_month for row in quotas.values() if row.tokens_per_month is not None}
            wanted = {(ask.quota_id, ask.month) for ask in asks if ask.quota_id in limits}
            months = await repository.open_months(session, quotas, wanted)
            answers = []
            for ask in asks:
                if (limit := limits.get(ask.quota_id)) is None:
                    answers.append(LeaseAnswer(ask.lease_id, Standing.UNLIMITED))
                    continue
                of_month = {
                    lease.id: lease
                    for lease in leases.values()
                    if (lease.quota_id, lease.period) == (ask.quota_id, ask.month)
                }
                mine, answer = _renewed(ask, limit - months[ask.quota_id, ask.month], of_month)
                if mine is not None:
                    mine.holder, mine.expires_at = holder, datetime.fromtimestamp(now + LEASE_S, UTC)
                    session.add(mine)
                    leases[mine.id] = mine
                answers.append(answer)
            return answers

    async def settle(self, used: Mapping[str, int]) -> None:
        """Ends leases, in one transaction. Idempotent. ``used``: by lease id, tokens since it began that ended requests
        were billed; what the ledger does not have of them yet is kept until it does or the lease expires."""
        async with self._database.write() as session:
            quotas = await repository.quotas_of(session, used)
            await repository.lock_quotas(session, quotas)
            for lease in await repository.leases_of(session, quotas):
                tokens = used.get(lease.id)
                if tokens is not None and lease.spent >= tokens:
                    await repository.end(session, lease)
                elif tokens is not None:
                    lease.granted = min(lease.granted, tokens)


def _renewed(ask: LeaseAsk, left: int, leases: Mapping[str, QuotaLease]) -> tuple[QuotaLease | None, LeaseAnswer]:
    """The lease with its new grant, None where there is none. ``left``: what the month has beside ``leases``, which are
    all that live."""
    mine = leases.get(ask.lease_id)
    if mine is None and not ask.fresh:
        return None, LeaseAnswer(ask.lease_id, Standing.GONE)
    others = sum(max(lease.granted, lease.spent) for lease in leases.values() if lease is not mine)
    offered = min(ask.wanted, left - others)
    granted = max(ask.kept, offered if offered >= ask.least else 0)
    if mine is None and granted:
        mine = QuotaLease(id=ask.lease_id, quota_id=ask.quota_id, period=ask.month, spent=0)
    if mine is not None:
        mine.granted = granted
    spent = sum(lease.spent for lease in leases.values() if lease is not mine)
    unspent = left - spent - max(ask.used, 0 if mine is None else mine.spent)
    return mine, LeaseAnswer(ask.lease_id, Standing.HELD, granted, max(0, left - others - granted), max(0, unspent))


__all__ = ["LeaseService"]

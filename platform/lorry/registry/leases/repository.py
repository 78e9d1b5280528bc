"""SQL on leases, months and charges.

Every writer locks the quota first, several in the order of their ids, so leases and months of one quota change in one
order. The writer of the ledger comes here after all its other locks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry.db.tables import Adapter, Quota, QuotaLease, QuotaPeriod, Tenant, UsageEvent
from lorry.registry.leases.months import bounds_of
from lorry.registry.leases.terms import CLOCKS_S, Charge


@dataclass(frozen=True, slots=True)
class Use:
    """Tokens of a month: ``used`` by requests that ended, ``leased`` to gateways beyond those."""

    used: int
    leased: int


async def lock_quotas(session: AsyncSession, quota_ids: Collection[str]) -> dict[str, Quota]:
    """Those that there are."""
    query = select(Quota).where(Quota.id.in_(sorted(quota_ids))).order_by(Quota.id).with_for_update()
    return {row.id: row for row in (await session.execute(query)).scalars()}


async def leases_of(session: AsyncSession, quota_ids: Collection[str]) -> list[QuotaLease]:
    query = select(QuotaLease).where(QuotaLease.quota_id.in_(sorted(quota_ids)))
    return list((await session.execute(query)).scalars())


async def quotas_of(session: AsyncSession, lease_ids: Collection[str]) -> Sequence[str]:
    """The ids of the leases' quotas. They stay theirs."""
    query = select(QuotaLease.quota_id).where(QuotaLease.id.in_(sorted(lease_ids))).distinct()
    return (await session.execute(query)).scalars().all()


async def open_months(
    session: AsyncSession, quotas: Mapping[str, Quota], wanted: Collection[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """What is spent by (quota id, month), apart from leases. A new month begins with what the ledger has of it: rows of
    requests that were charged to nobody, as the quota did not limit tokens when they began, or as it lost its months
    (``forget``) before they ended."""
    pair = tuple_(QuotaPeriod.quota_id, QuotaPeriod.period)
    query = select(QuotaPeriod.quota_id, QuotaPeriod.period, QuotaPeriod.spent).where(pair.in_(sorted(wanted)))
    found = {(quota, month): spent for quota, month, spent in await session.execute(query)}
    for quota_id, month in sorted(set(wanted) - found.keys()):
        found[quota_id, month] = spent = await _in_ledger(session, quotas[quota_id], month)
        session.add(QuotaPeriod(quota_id=quota_id, period=month, spent=spent))
    await session.flush()
    return found


async def end(session: AsyncSession, lease: QuotaLease) -> None:
    """What it spent stays spent; the rest is free."""
    await _spend(session, lease.quota_id, lease.period, lease.spent)
    await session.delete(lease)
    await session.flush()


async def charge(session: AsyncSession, tokens: Mapping[Charge, int]) -> None:
    """Adds tokens of rows that this transaction appends to the ledger. Where lease and month are both gone nothing is
    charged: whoever opens the month again finds the rows in the ledger."""
    if not tokens:
        return
    await lock_quotas(session, {one.quota_id for one in tokens})
    for one in sorted(tokens):
        to_lease = update(QuotaLease).where(
            QuotaLease.id == one.lease_id, QuotaLease.quota_id == one.quota_id, QuotaLease.period == one.month
        )
        step = to_lease.values(spent=QuotaLease.spent + tokens[one]).returning(QuotaLease.id)
        if (await session.execute(step)).first() is None:
            await _spend(session, one.quota_id, one.month, tokens[one])


async def forget(session: AsyncSession, quota_id: str) -> None:
    """Months and leases of a quota that is locked and limits no tokens any more."""
    for table in (QuotaLease, QuotaPeriod):
        await session.execute(delete(table).where(table.quota_id == quota_id))


async def use(session: AsyncSession, quota: Quota, month: str, now: float) -> Use:
    """Locks nothing."""
    period = select(QuotaPeriod.spent).where(QuotaPeriod.quota_id == quota.id, QuotaPeriod.period == month)
    spent = (await session.execute(period)).scalar_one_or_none()
    if spent is None:
        return Use(await _in_ledger(session, quota, month), 0)
    used, leased = spent, 0
    for lease in await leases_of(session, [quota.id]):
        if lease.period == month:
            used += lease.spent
            leased += 0 if expired(lease, now) else max(0, lease.granted - lease.spent)
    return Use(used, leased)


def expired(lease: QuotaLease, now: float) -> bool:
    return lease.expires_at + timedelta(seconds=CLOCKS_S) <= datetime.fromtimestamp(now, UTC)


async def _spend(session: AsyncSession, quota_id: str, month: str, tokens: int) -> None:
    where: Any = (QuotaPeriod.quota_id == quota_id) & (QuotaPeriod.period == month)
    await session.execute(update(QuotaPeriod).where(where).values(spent=QuotaPeriod.spent + tokens))


async def _in_ledger(session: AsyncSession, quota: Quota, month: str) -> int:
    """Tokens of requests that began in the month."""
    start, end_ = bounds_of(month)
    total = func.coalesce(func.sum(UsageEvent.prompt_tokens + UsageEvent.output_tokens), 0)
    query = select(total).where(
        UsageEvent.tenant_id == quota.tenant_id,
        UsageEvent.ended_at >= start,
        UsageEvent.started_at >= start,
        UsageEvent.started_at < end_,
    )
    if quota.adapter_id is not None:
        name = select("tenants/" + Tenant.name + "/adapters/" + Adapter.name).select_from(Adapter)
        name = name.join(Tenant, Tenant.id == Adapter.tenant_id).where(Adapter.id == quota.adapter_id)
        query = query.where(UsageEvent.adapter == name.scalar_subquery())
    return int((await session.execute(query)).scalar_one())


__all__ = [
    "Use",
    "charge",
    "end",
    "expired",
    "forget",
    "leases_of",
    "lock_quotas",
    "open_months",
    "quotas_of",
    "use",
]

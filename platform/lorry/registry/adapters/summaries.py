"""What lists tell of an adapter beside its name, read for a page of adapters at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer, joinedload

from lorry.registry.aliases.repository import newest_revision
from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.tables import Adapter, AdapterVersion, Alias, AliasRevision, UsageRollup

ALIASES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class AdapterSummary:
    """``newest``: with its base and without its report; None without versions. ``aliases``: the first by name, of
    ``alias_count``. ``last_use``: the beginning of the hour, UTC, in which a request of its own tenant ended last."""

    adapter: Adapter
    newest: AdapterVersion | None
    aliases: Sequence[AliasRevision]
    alias_count: int
    last_use: datetime | None


async def summaries(
    session: AsyncSession, tenant: VerifiedTenantId, tenant_name: str, adapters: Sequence[Adapter]
) -> list[AdapterSummary]:
    """Of adapters of the tenant, in their order: three statements, however many there are."""
    ids = [row.id for row in adapters]
    newest = await _newest(session, tenant, ids)
    aliases = await _aliases(session, tenant, ids)
    used = await _last_uses(session, tenant, tenant_name, ids)
    return [
        AdapterSummary(
            row,
            newest.get(row.id),
            [alias for alias, _ in aliases.get(row.id, ())],
            next((count for _, count in aliases.get(row.id, ())), 0),
            used.get(row.id),
        )
        for row in adapters
    ]


async def _newest(session: AsyncSession, tenant: VerifiedTenantId, ids: Sequence[str]) -> dict[str, AdapterVersion]:
    query = (
        select(AdapterVersion)
        .join(Adapter, Adapter.id == AdapterVersion.adapter_id)
        .options(joinedload(AdapterVersion.base), defer(AdapterVersion.report, raiseload=True))
        .where(Adapter.id.in_(ids), Adapter.tenant_id == tenant, AdapterVersion.number == Adapter.last_version)
    )
    return {row.adapter_id: row for row in (await session.execute(query)).scalars()}


async def _aliases(
    session: AsyncSession, tenant: VerifiedTenantId, ids: Sequence[str]
) -> dict[str, list[tuple[AliasRevision, int]]]:
    """The first of each adapter, each with the number that there are."""
    place = func.row_number().over(partition_by=Alias.adapter_id, order_by=Alias.name)
    ranked = (
        select(
            Alias.adapter_id,
            Alias.name,
            Alias.revision,
            place.label("place"),
            func.count().over(partition_by=Alias.adapter_id).label("count"),
        )
        .join(Adapter, Adapter.id == Alias.adapter_id)
        .join(AliasRevision, newest_revision())
        .where(Adapter.id.in_(ids), Adapter.tenant_id == tenant, AliasRevision.deleted.is_(False))
        .subquery()
    )
    same: ColumnElement[bool] = (
        (AliasRevision.adapter_id == ranked.c.adapter_id)
        & (AliasRevision.name == ranked.c.name)
        & (AliasRevision.revision == ranked.c.revision)
    )
    query = select(AliasRevision, ranked.c.count).join(ranked, same).where(ranked.c.place <= ALIASES_SHOWN)
    found: dict[str, list[tuple[AliasRevision, int]]] = {}
    for row, count in await session.execute(query.order_by(AliasRevision.adapter_id, AliasRevision.name)):
        found.setdefault(row.adapter_id, []).append((row, int(count)))
    return found


async def _last_uses(
    session: AsyncSession, tenant: VerifiedTenantId, tenant_name: str, ids: Sequence[str]
) -> dict[str, datetime]:
    """By an index that begins with tenant, model and hour: one step into it for each adapter, however much was used."""
    model = literal(f"tenants/{tenant_name}/adapters/").concat(Adapter.name)
    last = (
        select(func.max(UsageRollup.hour))
        .where(UsageRollup.tenant_id == tenant, UsageRollup.model == model)
        .correlate(Adapter)
        .scalar_subquery()
    )
    query = select(Adapter.id, last).where(Adapter.id.in_(ids), Adapter.tenant_id == tenant)
    return {adapter: hour for adapter, hour in await session.execute(query) if hour is not None}


__all__ = ["ALIASES_SHOWN", "AdapterSummary", "summaries"]

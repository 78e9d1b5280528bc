"""SQL on replicas. They belong to no tenant."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, TenantId
from lorry.registry.db.tables import Adapter, AdapterVersion, ReplicaState, Residency, Tenant
from lorry.registry.paging import PageRequest


async def find(session: AsyncSession, name: str) -> ReplicaState | None:
    return (await session.execute(select(ReplicaState).where(ReplicaState.name == name))).scalar_one_or_none()


async def seen_since(session: AsyncSession, after: datetime, page: PageRequest) -> Sequence[ReplicaState]:
    """By name."""
    query = select(ReplicaState).where(ReplicaState.seen_at >= after, ReplicaState.name > page.after)
    return (await session.execute(query.order_by(ReplicaState.name).limit(page.size + 1))).scalars().all()


async def forget_before(session: AsyncSession, before: datetime) -> None:
    """Of replicas that were not seen since."""
    gone = select(ReplicaState.name).where(ReplicaState.seen_at < before)
    await session.execute(delete(Residency).where(Residency.replica.in_(gone)))
    await session.execute(delete(ReplicaState).where(ReplicaState.seen_at < before))


async def version_names(
    session: AsyncSession, adapter_ids: Collection[str], digests: Collection[str]
) -> list[tuple[AdapterKey, str]]:
    """Of any tenant: only for a caller who may know. The newest versions first."""
    query = (
        select(Adapter.id, AdapterVersion.sha256, Tenant.name, Adapter.name, AdapterVersion.number)
        .join(Adapter, Adapter.id == AdapterVersion.adapter_id)
        .join(Tenant, Tenant.id == Adapter.tenant_id)
        .where(AdapterVersion.adapter_id.in_(adapter_ids), AdapterVersion.sha256.in_(digests))
        .order_by(AdapterVersion.number.desc())
    )
    return [
        (AdapterKey(AdapterDigest(sha256), AdapterScope(own)), f"tenants/{tenant}/adapters/{name}/versions/{number}")
        for own, sha256, tenant, name, number in (await session.execute(query)).all()
    ]


async def tenant_names(session: AsyncSession, ids: Collection[str]) -> list[tuple[TenantId, str]]:
    """As ``version_names``."""
    query = select(Tenant.id, Tenant.name).where(Tenant.id.in_(ids))
    return [(TenantId(own), name) for own, name in (await session.execute(query)).all()]


__all__ = ["find", "forget_before", "seen_since", "tenant_names", "version_names"]

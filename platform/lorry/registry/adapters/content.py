"""SQL on the bytes behind versions: whose they are, and that nobody registers while they are destroyed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import joinedload, selectinload

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.tables import Adapter, AdapterVersion
from lorry.registry.entries import VersionState

_BESIDE = "purged/"
"""Where bytes stay for another version, names under this are deleted in their place, of which there is none: it takes
as long as it does without the other."""


class ObjectBin(Protocol):
    """The part of ``lorry.adapters.store.ObjectStore`` that destroys. Both raise ObjectStoreUnavailable."""

    async def exists(self, key: str) -> bool: ...

    async def delete(self, key: str) -> None:
        """Nothing happens if it is not there."""


async def destroy(objects: ObjectBin, prefix: str, paths: Iterable[str], shared: bool) -> None:
    """``shared``: another version stands on them, so they stay, and nobody is told."""
    for path in paths:
        await objects.delete(f"{prefix}/{_BESIDE if shared else ''}{path}")


async def lock_content(session: AsyncSession, sha256: str) -> None:
    """Until the transaction ends nobody else passes here with the same digest. On SQLite its one writer is enough."""
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(
            select(func.pg_advisory_xact_lock(int.from_bytes(bytes.fromhex(sha256[:16]), signed=True)))
        )


async def others_have(session: AsyncSession, adapter_id: str | None, sha256: str) -> bool:
    """Whether a version of another adapter (None: of any), of whatever tenant, stands on these bytes. For who destroys
    them alone, and tells nobody."""
    query = select(AdapterVersion.id).where(
        AdapterVersion.sha256 == sha256,
        AdapterVersion.purged_at.is_(None),
        AdapterVersion.state != VersionState.REJECTED.value,
    )
    if adapter_id is not None:
        query = query.where(AdapterVersion.adapter_id != adapter_id)
    return (await session.execute(query.limit(1))).first() is not None


async def versions_of(session: AsyncSession, adapter_id: str) -> Sequence[AdapterVersion]:
    """All of them, with their files, by number."""
    query = select(AdapterVersion).where(AdapterVersion.adapter_id == adapter_id)
    query = query.options(selectinload(AdapterVersion.files)).order_by(AdapterVersion.number)
    return (await session.execute(query)).scalars().all()


async def due_for_purge(session: AsyncSession, now: datetime, limit: int) -> Sequence[Adapter]:
    """Deleted adapters whose time is up, of every tenant, with their tenants."""
    query = select(Adapter).options(joinedload(Adapter.tenant)).order_by(Adapter.purge_at).limit(limit)
    query = query.where(Adapter.purge_at <= now, Adapter.deleted_at.is_not(None), Adapter.purged_at.is_(None))
    return (await session.execute(query)).scalars().all()


async def purged_of(session: AsyncSession, ids: Sequence[str]) -> Sequence[Adapter]:
    """Those of the adapters that are purged, of every tenant, with their tenants."""
    query = select(Adapter).options(joinedload(Adapter.tenant)).order_by(Adapter.id)
    return (await session.execute(query.where(Adapter.id.in_(ids), Adapter.purged_at.is_not(None)))).scalars().all()


async def purged_after(session: AsyncSession, adapter_id: str, limit: int) -> Sequence[Adapter]:
    """As ``purged_of``, of all whose ids follow this one."""
    query = select(Adapter).options(joinedload(Adapter.tenant)).order_by(Adapter.id).limit(limit)
    return (await session.execute(query.where(Adapter.id > adapter_id, Adapter.purged_at.is_not(None)))).scalars().all()


async def locked(session: AsyncSession, tenant: VerifiedTenantId, adapter_id: str) -> Adapter:
    """Until the transaction ends nobody else changes it: several processes may add to its receipt at once."""
    query = select(Adapter).where(Adapter.tenant_id == tenant, Adapter.id == adapter_id).with_for_update()
    return (await session.execute(query.execution_options(populate_existing=True))).scalar_one()


__all__ = [
    "ObjectBin",
    "destroy",
    "due_for_purge",
    "lock_content",
    "locked",
    "others_have",
    "purged_after",
    "purged_of",
    "versions_of",
]

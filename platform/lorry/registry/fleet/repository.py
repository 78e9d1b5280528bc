"""SQL on replicas. They belong to no tenant."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, delete, insert, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, TenantId
from lorry.registry.db.tables import Adapter, AdapterVersion, ReplicaState, Residency, Tenant
from lorry.registry.paging import PageRequest

_AT_ONCE = 200
"""Copies that one statement deletes."""
_PLACES = (Residency.device, Residency.host, Residency.disk)


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
        (_key(own, sha256), f"tenants/{tenant}/adapters/{name}/versions/{number}")
        for own, sha256, tenant, name, number in (await session.execute(query)).all()
    ]


async def tenant_names(session: AsyncSession, ids: Collection[str]) -> list[tuple[TenantId, str]]:
    """As ``version_names``."""
    query = select(Tenant.id, Tenant.name).where(Tenant.id.in_(ids))
    return [(TenantId(own), name) for own, name in (await session.execute(query)).all()]


async def copies_on(session: AsyncSession, replica: str) -> dict[AdapterKey, tuple[bool, bool, bool]]:
    """On device, in host memory, on disk."""
    query = select(Residency.adapter_id, Residency.sha256, *_PLACES).where(Residency.replica == replica)
    rows = (await session.execute(query)).all()
    return {_key(scope, sha256): (device, host, disk) for scope, sha256, device, host, disk in rows}


async def change_copies(
    session: AsyncSession,
    replica: str,
    gone: Collection[AdapterKey],
    new: Mapping[AdapterKey, tuple[bool, bool, bool]],
) -> None:
    """``gone`` go first."""
    keys = [(key.scope, key.digest) for key in gone]
    for start in range(0, len(keys), _AT_ONCE):
        these = tuple_(Residency.adapter_id, Residency.sha256).in_(keys[start : start + _AT_ONCE])
        await session.execute(delete(Residency).where(Residency.replica == replica, these))
    if new:
        rows = [
            {"replica": replica, "adapter_id": scope, "sha256": sha256, "device": device, "host": host, "disk": disk}
            for (sha256, scope), (device, host, disk) in new.items()
        ]
        await session.execute(insert(Residency), rows)


async def copies_of(
    session: AsyncSession, adapter_ids: Collection[str], besides: Collection[str], after: datetime
) -> list[tuple[str, AdapterKey, tuple[bool, bool, bool], datetime]]:
    """As ``version_names``. On other engines than ``besides`` that have told of their copies since: with when they did,
    by name."""
    query = (
        select(ReplicaState.name, ReplicaState.copies_seen_at, Residency.adapter_id, Residency.sha256, *_PLACES)
        .join(Residency, Residency.replica == ReplicaState.name)
        .where(*_told_since(after, besides), Residency.adapter_id.in_(adapter_ids))
        .order_by(ReplicaState.name, Residency.adapter_id, Residency.sha256)
    )
    return [
        (name, _key(scope, sha256), (device, host, disk), at)
        for name, at, scope, sha256, device, host, disk in (await session.execute(query)).all()
        if at is not None
    ]


async def is_served(session: AsyncSession, base: str, besides: Collection[str], after: datetime) -> bool:
    """By another engine than ``besides``."""
    query = select(ReplicaState.name).where(*_told_since(after, besides), ReplicaState.base_sha256 == base).limit(1)
    return (await session.execute(query)).first() is not None


def _key(scope: str, sha256: str) -> AdapterKey:
    return AdapterKey(AdapterDigest(sha256), AdapterScope(scope))


def _told_since(after: datetime, besides: Collection[str]) -> tuple[ColumnElement[bool], ...]:
    """An engine that answers: what was on the device of one that does not is not there any more."""
    told = ReplicaState.copies_seen_at >= after
    return ReplicaState.kind == "engine", ReplicaState.state == "SERVING", told, ReplicaState.name.not_in(besides)


__all__ = [
    "change_copies", "copies_of", "copies_on", "find", "forget_before", "is_served", "seen_since", "tenant_names",
    "version_names",
]  # fmt: skip

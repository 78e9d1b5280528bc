"""SQL on quotas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import joinedload

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.tables import Adapter, Quota
from lorry.registry.paging import PageRequest

_WITH_NAMES = joinedload(Quota.adapter).joinedload(Adapter.tenant)
_WHOLE_TENANT = "0"
"""Stands before every adapter's id."""
_ORDER: Any = func.coalesce(Quota.adapter_id, _WHOLE_TENANT)


async def lock_of(session: AsyncSession, tenant: VerifiedTenantId, adapter_id: str | None) -> Quota | None:
    """The tenant's own where ``adapter_id`` is None. Nobody else changes it, nor leases of it, until the end of the
    transaction."""
    query = select(Quota).where(Quota.tenant_id == tenant, Quota.adapter_id.is_not_distinct_from(adapter_id))
    return (await session.execute(query.with_for_update())).scalar_one_or_none()


async def lock(session: AsyncSession, tenant: VerifiedTenantId, quota_id: str) -> Quota | None:
    """As ``lock_of``, by its id."""
    query = select(Quota).where(Quota.tenant_id == tenant, Quota.id == quota_id).with_for_update()
    return (await session.execute(query)).scalar_one_or_none()


async def list_page(session: AsyncSession, tenant: VerifiedTenantId, page: PageRequest) -> Sequence[Quota]:
    """The tenant's own, then by adapter id, each with its adapter and that one's tenant. Goes on after a ``key``."""
    query = select(Quota).options(_WITH_NAMES).where(Quota.tenant_id == tenant, page.after < _ORDER)
    return (await session.execute(query.order_by(_ORDER).limit(page.size + 1))).scalars().all()


def key(quota: Quota) -> str:
    """Where a quota stands in ``list_page``."""
    return quota.adapter_id or _WHOLE_TENANT


__all__ = ["key", "list_page", "lock", "lock_of"]

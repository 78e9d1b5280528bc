"""SQL on prices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.tables import Price


async def list_page(session: AsyncSession, tenant: VerifiedTenantId, before: date | None, size: int) -> Sequence[Price]:
    """Newest first, one more than ``size`` where there is one."""
    query = select(Price).where(Price.tenant_id == tenant)
    if before is not None:
        query = query.where(Price.effective_on < before)
    return (await session.execute(query.order_by(Price.effective_on.desc()).limit(size + 1))).scalars().all()


async def find(session: AsyncSession, tenant: VerifiedTenantId, day: date) -> Price | None:
    query = select(Price).where(Price.tenant_id == tenant, Price.effective_on == day)
    return (await session.execute(query)).scalar_one_or_none()


async def other_currency(session: AsyncSession, tenant: VerifiedTenantId, currency: str, but: date) -> str | None:
    """One that the tenant's prices of other days are in."""
    query = select(Price.currency).where(
        Price.tenant_id == tenant, Price.currency != currency, Price.effective_on != but
    )
    return (await session.execute(query.limit(1))).scalar_one_or_none()


__all__ = ["find", "list_page", "other_currency"]

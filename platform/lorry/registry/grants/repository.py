"""SQL on grants and pins."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import contains_eager, joinedload

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.base import new_id
from lorry.registry.db.tables import Adapter, Grant, Pin, Tenant
from lorry.registry.paging import PageRequest

_BETWEEN = ".."
"""No name has it, and a page token may."""
_RESOURCE = (joinedload(Grant.adapter).joinedload(Adapter.tenant), joinedload(Grant.base))


async def find_active(
    session: AsyncSession, tenant: VerifiedTenantId, adapter_id: str | None, base_model_id: str | None
) -> Grant | None:
    """Exactly one of the ids is given."""
    resource = Grant.adapter_id == adapter_id if adapter_id else Grant.base_model_id == base_model_id
    query = select(Grant).options(*_RESOURCE).where(Grant.tenant_id == tenant, resource, Grant.revoked_at.is_(None))
    return (await session.execute(query)).scalar_one_or_none()


async def insert(
    session: AsyncSession,
    tenant: VerifiedTenantId,
    adapter_id: str | None,
    base_model_id: str | None,
    created_by: str,
) -> Grant:
    row = Grant(
        id=new_id("gr"),
        tenant_id=tenant,
        adapter_id=adapter_id,
        base_model_id=base_model_id,
        created_by=created_by,
    )
    session.add(row)
    await session.flush()
    return row


async def find(session: AsyncSession, tenant: VerifiedTenantId, grant_id: str) -> Grant | None:
    query = select(Grant).options(*_RESOURCE).where(Grant.tenant_id == tenant, Grant.id == grant_id)
    return (await session.execute(query)).scalar_one_or_none()


async def list_newest_first(session: AsyncSession, tenant: VerifiedTenantId, page: PageRequest) -> Sequence[Grant]:
    query = select(Grant).options(*_RESOURCE).where(Grant.tenant_id == tenant)
    if page.after:
        query = query.where(Grant.id < page.after)
    return (await session.execute(query.order_by(Grant.id.desc()).limit(page.size + 1))).scalars().all()


async def lock_pin(session: AsyncSession, tenant: VerifiedTenantId, adapter_id: str) -> Pin | None:
    """Nobody else changes it until the transaction's end."""
    query = select(Pin).where(Pin.tenant_id == tenant, Pin.adapter_id == adapter_id).with_for_update()
    return (await session.execute(query)).scalar_one_or_none()


async def list_pins(session: AsyncSession, tenant: VerifiedTenantId, page: PageRequest) -> Sequence[Pin]:
    """By the name of the adapter, which each has with it. ``page`` goes on after a ``pin_key``."""
    query = select(Pin).join(Pin.adapter).join(Adapter.tenant).where(Pin.tenant_id == tenant)
    if page.after:
        owner, _, name = page.after.partition(_BETWEEN)
        query = query.where(tuple_(Tenant.name, Adapter.name) > tuple_(owner, name))
    query = query.options(contains_eager(Pin.adapter).contains_eager(Adapter.tenant))
    return (await session.execute(query.order_by(Tenant.name, Adapter.name).limit(page.size + 1))).scalars().all()


def pin_key(pin: Pin) -> str:
    """Where a pin stands in ``list_pins``."""
    return f"{pin.adapter.tenant.name}{_BETWEEN}{pin.adapter.name}"


__all__ = ["find", "find_active", "insert", "list_newest_first", "list_pins", "lock_pin", "pin_key"]

"""SQL on tenants, principals and keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import joinedload
from sqlalchemy.orm.attributes import set_committed_value

from lorry.ids import TenantId
from lorry.registry.authz import Caller, VerifiedTenantId, not_visible, verify_tenant
from lorry.registry.db.base import new_id
from lorry.registry.db.tables import ApiKey, Principal, Tenant
from lorry.registry.keys import NewKey
from lorry.registry.paging import PageRequest

_KEY = (joinedload(ApiKey.principal), joinedload(ApiKey.use))


async def find_tenant(session: AsyncSession, name: str) -> Tenant | None:
    """By name, unverified: callers need ``open_tenant`` unless they are the bootstrap."""
    return (await session.execute(select(Tenant).where(Tenant.name == name))).scalar_one_or_none()


async def open_tenant(session: AsyncSession, caller: Caller, name: str) -> tuple[Tenant, VerifiedTenantId]:
    """The tenant of that name, where the caller may act on it; else ResourceNotFound, whether or not it
    exists."""
    row = await find_tenant(session, name)
    if row is None:
        raise not_visible()
    return row, verify_tenant(caller, TenantId(row.id))


async def lock_tenant(session: AsyncSession, tenant: VerifiedTenantId) -> Tenant:
    """Its row as it is now; nobody else changes it until the transaction's end."""
    query = select(Tenant).where(Tenant.id == tenant).with_for_update(key_share=True)
    return (await session.execute(query.execution_options(populate_existing=True))).scalar_one()


async def list_tenants(session: AsyncSession, page: PageRequest) -> Sequence[Tenant]:
    query = select(Tenant).where(Tenant.name > page.after).order_by(Tenant.name).limit(page.size + 1)
    return (await session.execute(query)).scalars().all()


async def insert_tenant(session: AsyncSession, name: str, display_name: str, weight: int = 1) -> Tenant:
    row = Tenant(id=new_id("tn"), name=name, display_name=display_name, weight=weight)
    session.add(row)
    await session.flush()
    return row


async def get_tenant(session: AsyncSession, tenant: VerifiedTenantId) -> Tenant:
    return (await session.execute(select(Tenant).where(Tenant.id == tenant))).scalar_one()


async def find_principal(session: AsyncSession, tenant: VerifiedTenantId, name: str) -> Principal | None:
    query = select(Principal).where(Principal.tenant_id == tenant, Principal.name == name)
    return (await session.execute(query)).scalar_one_or_none()


async def insert_principal(session: AsyncSession, tenant: VerifiedTenantId, name: str, role: str) -> Principal:
    row = Principal(id=new_id("pr"), tenant_id=tenant, name=name, role=role)
    session.add(row)
    await session.flush()
    return row


async def insert_key(
    session: AsyncSession, tenant: VerifiedTenantId, principal: Principal, key: NewKey, expires_at: datetime | None
) -> ApiKey:
    row = ApiKey(
        id=key.key_id,
        tenant_id=tenant,
        principal_id=principal.id,
        mac=key.mac,
        pepper_id=key.pepper_id,
        last_four=key.last_four,
        expires_at=expires_at,
        principal=principal,
    )
    session.add(row)
    await session.flush()
    set_committed_value(row, "use", None)
    return row


async def list_keys(session: AsyncSession, tenant: VerifiedTenantId, page: PageRequest) -> Sequence[ApiKey]:
    """By id, with principal and last use; those that ended too."""
    query = select(ApiKey).options(*_KEY).where(ApiKey.tenant_id == tenant, ApiKey.id > page.after)
    return (await session.execute(query.order_by(ApiKey.id).limit(page.size + 1))).scalars().all()


async def lock_key(session: AsyncSession, tenant: VerifiedTenantId, key_id: str) -> ApiKey | None:
    """With principal and last use; nobody else changes it until the transaction's end."""
    query = select(ApiKey).options(*_KEY).where(ApiKey.tenant_id == tenant, ApiKey.id == key_id)
    return (await session.execute(query.with_for_update(key_share=True, of=ApiKey))).scalar_one_or_none()


__all__ = [
    "find_principal",
    "find_tenant",
    "get_tenant",
    "insert_key",
    "insert_principal",
    "insert_tenant",
    "list_keys",
    "list_tenants",
    "lock_key",
    "lock_tenant",
    "open_tenant",
]

"""Tenants and API keys: who may make them, and what a change means."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from lorry.errors import FailedPrecondition, InvalidRequest
from lorry.registry import audit, changes
from lorry.registry.authz import Caller, Role, not_visible, require_admin, require_owner
from lorry.registry.changes import Change, Kind
from lorry.registry.db.base import utcnow
from lorry.registry.db.conflicts import unique
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import ApiKey, Tenant
from lorry.registry.idempotency import RequestKey, remember, replay
from lorry.registry.keys import Peppers
from lorry.registry.names import DISPLAY_NAME_MAX, check_part, check_text
from lorry.registry.paging import Page, PageRequest
from lorry.registry.tenants import repository

PLATFORM_TENANT = "platform"
"""The tenant of the platform's administrators, made at first start."""


class TenantService:
    """Every method raises RoleTooLow for a role that may not, and ResourceNotFound for what is not there or
    not the caller's to see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, caller: Caller, name: str, display_name: str = "", request_id: str = "") -> Tenant:
        """Raises AlreadyExists."""
        require_admin(caller, "create tenants")
        check_part("tenant_id", name)
        check_text("display_name", display_name, DISPLAY_NAME_MAX)
        key = RequestKey.of(caller, "CreateTenant", request_id, name, display_name)
        async with self._database.write() as session:
            if await replay(session, key) is not None:
                return (await repository.open_tenant(session, caller, name))[0]
            async with unique(session, f"tenant_id: {name!r} is taken; choose another"):
                row = await repository.insert_tenant(session, name, display_name)
            _, tenant = await repository.open_tenant(session, caller, name)
            audit.append(session, tenant, caller, "tenant.create", f"tenants/{name}")
            remember(session, key, row.id)
            await changes.record(session, Change(Kind.TENANT, row.id))
            return row

    async def get(self, caller: Caller, name: str) -> Tenant:
        async with self._database.read() as session:
            return (await repository.open_tenant(session, caller, name))[0]

    async def list(self, caller: Caller, page: PageRequest) -> Page[Tenant]:
        require_admin(caller, "list tenants")
        async with self._database.read() as session:
            return page.page(await repository.list_tenants(session, page), lambda row: row.name)

    async def update(
        self, caller: Caller, name: str, fields: Collection[str], *, display_name: str = "", suspended: bool = False
    ) -> Tenant:
        """Sets those of ``display_name`` and ``suspended`` that ``fields`` names."""
        require_admin(caller, "change tenants")
        unknown = sorted(set(fields) - {"display_name", "suspended"})
        if unknown or not fields:
            raise InvalidRequest.field("update_mask", f"{unknown} cannot be set; use display_name, suspended")
        async with self._database.write() as session:
            row, tenant = await repository.open_tenant(session, caller, name)
            if "display_name" in fields:
                row.display_name = check_text("display_name", display_name, DISPLAY_NAME_MAX)
            if "suspended" in fields:
                if suspended and name == PLATFORM_TENANT:
                    raise FailedPrecondition(f"suspended: tenant {name!r} administers the platform; it cannot be")
                row.suspended = suspended
            audit.append(session, tenant, caller, "tenant.update", f"tenants/{name}", fields=sorted(fields))
            await changes.record(session, Change(Kind.TENANT, row.id))
            return row


class KeyService:
    """API keys. As TenantService for errors."""

    def __init__(self, database: Database, peppers: Peppers) -> None:
        self._database = database
        self._peppers = peppers

    async def create(
        self, caller: Caller, tenant_name: str, principal: str, role: str, expires_at: datetime | None = None
    ) -> tuple[ApiKey, str]:
        """The row and the key's text, which is kept nowhere."""
        require_admin(caller, "create API keys")
        check_part("principal", principal)
        if (role == Role.PLATFORM_ADMIN) != (tenant_name == PLATFORM_TENANT) or role not in set(Role):
            raise InvalidRequest.field(
                "role", f"{role!r} is not one for tenant {tenant_name!r}; use owner or member, platform_admin for "
                f"{PLATFORM_TENANT!r} alone"
            )  # fmt: skip
        if expires_at is not None and expires_at <= utcnow():
            raise InvalidRequest.field("expire_time", f"{expires_at.isoformat()} is past; use a later one, or none")
        async with self._database.write() as session:
            _, tenant = await repository.open_tenant(session, caller, tenant_name)
            owner = await repository.find_principal(session, tenant, principal)
            if owner is None:
                owner = await repository.insert_principal(session, tenant, principal, role)
            elif owner.role != role:
                raise InvalidRequest.field(
                    "role", f"principal {principal!r} is {owner.role!r} and stays so; use that, or another principal"
                )
            key = self._peppers.new_key()
            row = await repository.insert_key(session, tenant, owner, key, expires_at)
            subject = f"tenants/{tenant_name}/apiKeys/{row.id}"
            audit.append(session, tenant, caller, "key.create", subject, principal=principal, role=role)
            await changes.record(session, Change(Kind.API_KEY, row.id))
            return row, key.text

    async def list(self, caller: Caller, tenant_name: str, page: PageRequest) -> Page[ApiKey]:
        require_owner(caller, "list API keys")
        async with self._database.read() as session:
            _, tenant = await repository.open_tenant(session, caller, tenant_name)
            return page.page(await repository.list_keys(session, tenant, page), lambda row: row.id)

    async def revoke(self, caller: Caller, tenant_name: str, key_id: str) -> ApiKey:
        """Idempotent: the first revocation's time stays."""
        require_admin(caller, "revoke API keys")
        async with self._database.write() as session:
            _, tenant = await repository.open_tenant(session, caller, tenant_name)
            row = await repository.find_key(session, tenant, key_id)
            if row is None:
                raise not_visible()
            if row.revoked_at is None:
                row.revoked_at = utcnow()
                audit.append(session, tenant, caller, "key.revoke", f"tenants/{tenant_name}/apiKeys/{key_id}")
                await changes.record(session, Change(Kind.API_KEY, row.id))
            return row


__all__ = ["PLATFORM_TENANT", "KeyService", "TenantService"]

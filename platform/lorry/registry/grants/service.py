"""Giving and ending grants, setting and clearing pins."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy.ext.asyncio import AsyncSession

from lorry.errors import InvalidRequest
from lorry.registry import audit, changes
from lorry.registry.adapters import repository as adapters
from lorry.registry.authz import Caller, not_visible
from lorry.registry.bases import repository as bases
from lorry.registry.changes import Change, Kind
from lorry.registry.db.base import utcnow
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import Adapter, Grant, Pin
from lorry.registry.grants import repository
from lorry.registry.idempotency import RequestKey, remember, replay
from lorry.registry.names import AdapterName, BaseName, parse_model
from lorry.registry.paging import Page, PageRequest
from lorry.registry.rights import require
from lorry.registry.tenants.repository import lock_tenant, open_tenant


class PinMode(StrEnum):
    """HARD: no name of the adapter means another version. DEFAULT: its bare name alone means the pinned one."""

    HARD = "HARD"
    DEFAULT = "DEFAULT"


class GrantService:
    """Grants are given and ended by the platform's administrators; a tenant's readers read its own, its
    operators set its pins. Raises RoleTooLow, and ResourceNotFound for what is not there or not the caller's to see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, caller: Caller, tenant_name: str, resource: str, request_id: str = "") -> Grant:
        """``resource`` is ``models/{base}`` or a bare adapter name. An active grant is answered as it is, and so is for
        a repeated ``request_id`` the one that it was answered, which may have been revoked since."""
        require(caller, "give grants")
        key = RequestKey.of(caller, "CreateGrant", request_id, tenant_name, resource)
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            if (known := await replay(session, key)) is not None:
                row = await repository.find(session, tenant, known)
                if row is None:
                    raise not_visible()
                return row
            adapter_id, base_id = await self._resource(session, caller, resource)
            await lock_tenant(session, tenant)  # so that of two at once the second finds what the first made
            row = await repository.find_active(session, tenant, adapter_id, base_id)
            if row is not None:
                remember(session, key, row.id)
                return row
            made = await repository.insert(session, tenant, adapter_id, base_id, caller.key_id)
            audit.append(
                session, tenant, caller, "grant.create", f"tenants/{tenant_name}/grants/{made.id}", on=resource
            )
            remember(session, key, made.id)
            await changes.record(session, Change(Kind.GRANT, made.id))
            row = await repository.find_active(session, tenant, adapter_id, base_id)
            assert row is not None
            return row

    async def revoke(self, caller: Caller, tenant_name: str, grant_id: str) -> Grant:
        """Idempotent: the first revocation's time stays."""
        require(caller, "revoke grants")
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            row = await repository.find(session, tenant, grant_id)
            if row is None:
                raise not_visible()
            if row.revoked_at is None:
                row.revoked_at = utcnow()
                audit.append(session, tenant, caller, "grant.revoke", f"tenants/{tenant_name}/grants/{grant_id}")
                await changes.record(session, Change(Kind.GRANT, row.id))
            return row

    async def list(self, caller: Caller, tenant_name: str, page: PageRequest) -> Page[Grant]:
        require(caller, "list grants")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            return page.page(await repository.list_newest_first(session, tenant, page), lambda row: row.id)

    async def set_pin(
        self, caller: Caller, tenant_name: str, version: AdapterName, mode: PinMode = PinMode.HARD
    ) -> Pin:
        """In place of any other on the same adapter; an equal one is answered as it is. Needs an active grant on the
        adapter, and a READY or DEPRECATED version."""
        require(caller, "set pins")
        assert version.version is not None
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            adapter = await adapters.find_by_name(session, version.tenant, version.adapter)
            granted = adapter and await repository.find_active(session, tenant, adapter.id, None)
            if adapter is None or granted is None or adapter.deleted_at is not None:
                raise not_visible()
            await adapters.require_servable(session, adapter, version.version)
            await lock_tenant(session, tenant)
            pin = await repository.lock_pin(session, tenant, adapter.id)
            if pin is None:
                pin = Pin(tenant_id=tenant, adapter_id=adapter.id)
                session.add(pin)
            elif (pin.number, pin.mode) == (version.version, mode):
                return pin
            pin.number, pin.mode, pin.created_at, pin.created_by = version.version, mode.value, utcnow(), caller.key_id
            audit.append(session, tenant, caller, "pin.set", f"tenants/{tenant_name}", version=str(version), mode=mode)
            await changes.record(session, Change(Kind.PIN, f"{tenant}/{adapter.id}"))
            return pin

    async def list_pins(self, caller: Caller, tenant_name: str, page: PageRequest) -> Page[Pin]:
        """By adapter, each with it and its tenant. A pin stays without its grant, and is in force again with it."""
        require(caller, "list pins")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            return page.page(await repository.list_pins(session, tenant, page), repository.pin_key)

    async def clear_pin(self, caller: Caller, tenant_name: str, name: AdapterName) -> None:
        """Idempotent."""
        require(caller, "clear pins")
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            adapter = await adapters.find_by_name(session, name.tenant, name.adapter)
            pin = None if adapter is None else await repository.lock_pin(session, tenant, adapter.id)
            if adapter is None or pin is None:
                return
            was = f"{name.bare}/versions/{pin.number}"
            await session.delete(pin)
            audit.append(session, tenant, caller, "pin.clear", f"tenants/{tenant_name}", adapter=name.bare, version=was)
            await changes.record(session, Change(Kind.PIN, f"{tenant}/{adapter.id}"))

    async def _resource(self, session: AsyncSession, caller: Caller, name: str) -> tuple[str | None, str | None]:
        """(adapter id, base id), one of them None."""
        parsed = parse_model(name)
        found: Adapter | None
        if isinstance(parsed, BaseName):
            base = await bases.find(session, parsed.base)
            if base is None:
                raise not_visible()
            return None, base.id
        if isinstance(parsed, AdapterName) and parsed.version is None and not parsed.alias:
            _, owner = await open_tenant(session, caller, parsed.tenant)
            found = await adapters.find_adapter(session, owner, parsed.adapter)
            if found is None or found.deleted_at is not None:
                raise not_visible()
            return found.id, None
        raise InvalidRequest.field(
            "resource", f"{name[:80]!r} cannot be granted; use `models/{{base}}` or `tenants/{{t}}/adapters/{{a}}`"
        )


__all__ = ["GrantService", "PinMode"]

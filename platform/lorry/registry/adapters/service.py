"""Adapters and aliases: names that a tenant owns."""

from __future__ import annotations

from lorry.registry import audit, changes
from lorry.registry.adapters import repository
from lorry.registry.authz import Caller, require_owner
from lorry.registry.changes import Change, Kind
from lorry.registry.db.conflicts import unique
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import Adapter, Alias
from lorry.registry.grants import repository as grants
from lorry.registry.idempotency import RequestKey, remember, replay
from lorry.registry.names import DISPLAY_NAME_MAX, AdapterName, check_part, check_text
from lorry.registry.paging import Page, PageRequest
from lorry.registry.tenants.repository import open_tenant


class AdapterService:
    """Raises RoleTooLow below owner, and ResourceNotFound for what is not there or not the caller's to see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, caller: Caller, tenant_name: str, name: str, display_name: str = "", request_id: str = ""
    ) -> Adapter:
        """Also grants it to its own tenant. Raises AlreadyExists."""
        require_owner(caller, "create adapters")
        check_part("adapter_id", name)
        check_text("display_name", display_name, DISPLAY_NAME_MAX)
        key = RequestKey.of(caller, "CreateAdapter", request_id, tenant_name, name, display_name)
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            if await replay(session, key) is not None:
                return await repository.open_adapter(session, tenant, name)
            async with unique(session, f"adapter_id: {name!r} is taken in tenants/{tenant_name}; choose another"):
                row = await repository.insert_adapter(session, tenant, name, display_name)
            grant = await grants.insert(session, tenant, row.id, None, caller.key_id)
            audit.append(session, tenant, caller, "adapter.create", f"tenants/{tenant_name}/adapters/{name}")
            remember(session, key, row.id)
            await changes.record(session, Change(Kind.ADAPTER, row.id), Change(Kind.GRANT, grant.id))
            return row

    async def get(self, caller: Caller, name: AdapterName) -> Adapter:
        require_owner(caller, "read adapters")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            return await repository.open_adapter(session, tenant, name.adapter)

    async def list(self, caller: Caller, tenant_name: str, page: PageRequest) -> Page[Adapter]:
        require_owner(caller, "list adapters")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            return page.page(await repository.list_adapters(session, tenant, page), lambda row: row.name)

    async def set_alias(self, caller: Caller, name: AdapterName, alias: str, number: int) -> Alias:
        """Points ``alias`` at a READY version. Raises AdapterQuarantined or VersionNotReady."""
        require_owner(caller, "set aliases")
        check_part("alias_id", alias)
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            adapter = await repository.open_adapter(session, tenant, name.adapter)
            await repository.require_ready(session, adapter, number)
            row = await repository.set_alias(session, adapter, alias, number, caller.key_id)
            audit.append(session, tenant, caller, "alias.set", f"{name.bare}@{alias}", version=number)
            await changes.record(session, Change(Kind.ADAPTER, adapter.id))
            return row


__all__ = ["AdapterService"]

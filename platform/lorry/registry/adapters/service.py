"""Adapters: names that a tenant owns."""

from __future__ import annotations

from collections.abc import Collection

from lorry.errors import InvalidRequest
from lorry.registry import audit, changes
from lorry.registry.adapters import repository
from lorry.registry.adapters.summaries import AdapterSummary, summaries
from lorry.registry.authz import Caller
from lorry.registry.changes import Change, Kind
from lorry.registry.db.conflicts import unique
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import Adapter
from lorry.registry.etags import check_etag, etag_of
from lorry.registry.grants import repository as grants
from lorry.registry.idempotency import RequestKey, remember, replay
from lorry.registry.names import DISPLAY_NAME_MAX, AdapterName, check_part, check_text
from lorry.registry.paging import Page, PageRequest
from lorry.registry.rights import require
from lorry.registry.tenants.repository import open_tenant


class AdapterService:
    """Raises RoleTooLow by ``rights``, and ResourceNotFound for what is not there or not the caller's to see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, caller: Caller, tenant_name: str, name: str, display_name: str = "", request_id: str = ""
    ) -> Adapter:
        """Also grants it to its own tenant. Raises AlreadyExists."""
        require(caller, "create adapters")
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
        require(caller, "read adapters")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            return await repository.open_adapter(session, tenant, name.adapter, deleted=True)

    async def get_summary(self, caller: Caller, name: AdapterName) -> AdapterSummary:
        """With its newest version, aliases and last use."""
        require(caller, "read adapters")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            row = await repository.open_adapter(session, tenant, name.adapter, deleted=True)
            return (await summaries(session, tenant, name.tenant, [row]))[0]

    async def list(
        self, caller: Caller, tenant_name: str, page: PageRequest, *, deleted: bool = False
    ) -> Page[Adapter]:
        """``deleted``: with those."""
        require(caller, "list adapters")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            rows = await repository.list_adapters(session, tenant, page, deleted=deleted)
            return page.page(rows, lambda row: row.name)

    async def list_summaries(
        self, caller: Caller, tenant_name: str, page: PageRequest, *, deleted: bool = False
    ) -> Page[AdapterSummary]:
        """As ``list``, each with its newest version, aliases and last use."""
        require(caller, "list adapters")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            rows = await repository.list_adapters(session, tenant, page, deleted=deleted)
            found = page.page(rows, lambda row: row.name)
            return Page(await summaries(session, tenant, tenant_name, found.rows), found.next_token)

    async def update(
        self, caller: Caller, name: AdapterName, fields: Collection[str], *, display_name: str = "", etag: str = ""
    ) -> Adapter:
        """Sets ``display_name`` where ``fields`` names it. Raises StaleEtag."""
        require(caller, "change adapters")
        unknown = sorted(set(fields) - {"display_name"})
        if unknown or not fields:
            raise InvalidRequest.field("update_mask", f"{unknown} cannot be set; use display_name")
        check_text("display_name", display_name, DISPLAY_NAME_MAX)
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            row = await repository.open_adapter(session, tenant, name.adapter)
            check_etag(etag, adapter_etag(row))
            row.display_name, row.revision = display_name, row.revision + 1
            audit.append(session, tenant, caller, "adapter.update", name.bare, fields=sorted(fields))
            await changes.record(session, Change(Kind.ADAPTER, row.id))
            return row


def adapter_etag(row: Adapter) -> str:
    return etag_of("adapter", row.id, row.revision)


__all__ = ["AdapterService", "adapter_etag"]

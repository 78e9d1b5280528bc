"""Versions that are there: read, withdrawn, passed over. Their bytes and numbers never change."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from lorry.adapters.manifest import AdapterFile, AdapterRef
from lorry.errors import FailedPrecondition
from lorry.ids import AdapterDigest, AdapterScope
from lorry.registry import audit, changes
from lorry.registry.adapters import repository
from lorry.registry.authz import Caller, VerifiedTenantId, not_visible
from lorry.registry.changes import Change, Kind
from lorry.registry.db.base import utcnow
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import AdapterVersion
from lorry.registry.entries import VersionState
from lorry.registry.names import AdapterName, check_text
from lorry.registry.paging import Page, PageRequest
from lorry.registry.rights import require
from lorry.registry.tenants.repository import open_tenant

REASON_MAX = 1000


class VersionStates:
    """Raises RoleTooLow by ``rights``, and ResourceNotFound for what is not there or not the caller's to see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, caller: Caller, name: AdapterName) -> AdapterVersion:
        require(caller, "read versions")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            return await find(session, tenant, name)

    async def servable(
        self, caller: Caller, name: AdapterName, action: str = "place versions"
    ) -> tuple[AdapterRef, str]:
        """A READY or DEPRECATED version as engines know it, and its base's digest, to who may do ``action``. Raises
        AdapterQuarantined, VersionNotReady, or FailedPrecondition for a deleted adapter."""
        require(caller, action)
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            row = await find(session, tenant, name)
            adapter = await repository.open_adapter(session, tenant, name.adapter)
            await repository.require_servable(session, adapter, row.number)
            files = tuple(AdapterFile(file.path, file.size_bytes, file.sha256) for file in row.files)
            ref = AdapterRef(AdapterDigest(row.sha256), row.prefix, files, AdapterScope(row.adapter_id))
            return ref, row.base.base_sha256

    async def list(self, caller: Caller, name: AdapterName, page: PageRequest) -> Page[AdapterVersion]:
        require(caller, "list versions")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            adapter = await repository.open_adapter(session, tenant, name.adapter, deleted=True)
            rows = await repository.list_versions(session, adapter.id, page)
            return page.page(rows, lambda row: str(row.number))

    async def quarantine(self, caller: Caller, name: AdapterName, reason: str) -> AdapterVersion:
        """Idempotent: the first reason stays. Raises FailedPrecondition for a REJECTED version."""
        require(caller, "quarantine versions")
        check_text("reason", reason, REASON_MAX)
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            row = await find(session, tenant, name)
            if row.state == VersionState.REJECTED:
                raise FailedPrecondition(f"name: {name} is REJECTED and never served; nothing to quarantine")
            if row.state == VersionState.READY:
                row.state, row.state_reason = VersionState.QUARANTINED.value, reason
                audit.append(session, tenant, caller, "version.quarantine", str(name), reason=reason)
                await changes.record(session, Change(Kind.ADAPTER, row.adapter_id))
            return row

    async def deprecate(self, caller: Caller, name: AdapterName, reason: str) -> AdapterVersion:
        """Idempotent: the first reason stays. Raises FailedPrecondition for a version that is not READY."""
        require(caller, "deprecate versions")
        check_text("reason", reason, REASON_MAX)
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            row = await find(session, tenant, name)
            if row.state != VersionState.READY:
                raise FailedPrecondition(f"name: {name} is {row.state}; only a READY version can be deprecated")
            if row.deprecated_at is None:
                row.deprecated_at, row.state_reason = utcnow(), reason
                audit.append(session, tenant, caller, "version.deprecate", str(name), reason=reason)
                await changes.record(session, Change(Kind.ADAPTER, row.adapter_id))
            return row


async def find(session: AsyncSession, tenant: VerifiedTenantId, name: AdapterName) -> AdapterVersion:
    assert name.version is not None
    row = await repository.find_version(session, tenant, name.adapter, name.version)
    if row is None:
        raise not_visible()
    return row


__all__ = ["REASON_MAX", "VersionStates", "find"]

"""The end of an adapter: deleted, undeleted, purged.

A deleted adapter is as unknown to requests as one that never was, from the next snapshot on; its bytes stay for
``RETAIN``. A purge destroys them everywhere and keeps what is known of them: names, digests, audit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from sqlalchemy.ext.asyncio import AsyncSession

from lorry.errors import FailedPrecondition, LorryError
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, TenantId
from lorry.registry import audit, changes
from lorry.registry.adapters import content, repository
from lorry.registry.adapters.content import ObjectBin
from lorry.registry.adapters.service import adapter_etag
from lorry.registry.authz import Caller, Role, VerifiedTenantId, verify_tenant
from lorry.registry.changes import Change, Kind
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import Adapter
from lorry.registry.entries import VersionState
from lorry.registry.etags import check_etag
from lorry.registry.names import AdapterName
from lorry.registry.rights import require
from lorry.registry.tenants.repository import open_tenant

RETAIN = timedelta(days=30)
"""From an adapter's deletion to its purge."""
DUE_AT_ONCE = 100
PURGED = "purged"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Purged:
    """What a replica dropped."""

    disk_bytes: int = 0
    host_bytes: int = 0
    device_slots: int = 0
    kv_pages: int = 0


class Replicas(Protocol):
    """Every engine that may hold something."""

    async def forget(self, adapter: AdapterKey) -> dict[str, Purged]:
        """By replica. What other adapters with equal bytes have there stays, and is not told. Raises Unavailable."""


class LifecycleService:
    """Raises RoleTooLow by ``rights``, and ResourceNotFound for what is not there or not the caller's to see."""

    def __init__(
        self,
        database: Database,
        objects: ObjectBin,
        replicas: Replicas,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._objects = objects
        self._replicas = replicas
        self._now = now

    async def delete(self, caller: Caller, name: AdapterName, etag: str = "") -> Adapter:
        """Idempotent: the first deletion's times stay."""
        require(caller, "delete adapters")
        async with self._database.write() as session:
            tenant, row = await self._open(session, caller, name, etag)
            if row.deleted_at is None:
                row.deleted_at, row.purge_at, row.revision = self._now(), self._now() + RETAIN, row.revision + 1
                audit.append(session, tenant, caller, "adapter.delete", name.bare)
                await changes.record(session, Change(Kind.ADAPTER, row.id))
            return row

    async def undelete(self, caller: Caller, name: AdapterName, etag: str = "") -> Adapter:
        """Raises FailedPrecondition for one that is not deleted, or whose purge has begun."""
        require(caller, "undelete adapters")
        async with self._database.write() as session:
            tenant, row = await self._open(session, caller, name, etag)
            if row.deleted_at is None:
                raise FailedPrecondition(f"name: {name.bare} is not deleted; there is nothing to take back")
            if row.purge_receipt is not None:
                raise FailedPrecondition(f"name: {name.bare} is purged, its bytes are destroyed; register it anew")
            row.deleted_at, row.purge_at, row.revision = None, None, row.revision + 1
            audit.append(session, tenant, caller, "adapter.undelete", name.bare)
            await changes.record(session, Change(Kind.ADAPTER, row.id))
            return row

    async def purge(self, caller: Caller, name: AdapterName, etag: str = "") -> Adapter:
        """With ``purge_receipt``. Idempotent; one that could not finish goes on when it is asked for again.

        Raises FailedPrecondition for one that is not deleted, and Unavailable where the object store or an engine does
        not answer.
        """
        require(caller, "purge adapters")
        async with self._database.write() as session:
            tenant, row = await self._open(session, caller, name, etag)
            if row.deleted_at is None:
                raise FailedPrecondition(f"name: {name.bare} is not deleted; delete it first")
            if row.purged_at is not None:
                return row
            if row.purge_receipt is None:
                row.purge_receipt, row.revision = {"replicas": {}}, row.revision + 1
                audit.append(session, tenant, caller, "adapter.purge_begin", name.bare)
                await changes.record(session, Change(Kind.ADAPTER, row.id))
            versions = await content.versions_of(session, row.id)
        kept = {version.sha256: version.prefix for version in versions if version.state != VersionState.REJECTED}
        for sha256, prefix in kept.items():
            # A store that is down says so here: to wait for it in a transaction holds up every change of the registry.
            await self._objects.exists(f"{prefix}/{PURGED}")
            await self._destroy(name, tenant, sha256)
        return await self._finish(caller, name, tenant)

    async def purge_due(self) -> int:
        """Every deleted adapter whose time is up; how many of them are gone now. One that cannot be purged yet is tried
        again by the next call."""
        async with self._database.read() as session:
            rows = await content.due_for_purge(session, self._now(), DUE_AT_ONCE)
        done = 0
        for row in rows:
            name = AdapterName(row.tenant.name, row.name)
            try:
                await self.purge(of_the_system(row), name)
            except LorryError as error:
                _log.warning("%s is due to be purged and cannot be yet: %s", name.bare, error)
            else:
                done += 1
        return done

    async def _destroy(self, name: AdapterName, tenant: VerifiedTenantId, sha256: str) -> None:
        """One digest: its objects first, since a request that still runs would bring it back from there."""
        async with self._database.write() as session:
            row = await repository.open_adapter(session, tenant, name.adapter, deleted=True)
            await content.lock_content(session, sha256)
            shared = await content.others_have(session, row.id, sha256)
            for version in await content.versions_of(session, row.id):
                if version.sha256 != sha256 or version.state == VersionState.REJECTED:
                    continue
                await content.destroy(self._objects, version.prefix, [file.path for file in version.files], shared)
                if version.state == VersionState.READY:
                    version.state, version.state_reason = VersionState.QUARANTINED.value, PURGED
                version.purged_at = version.purged_at or self._now()
            await changes.record(session, Change(Kind.ADAPTER, row.id))
        dropped = await self._replicas.forget(AdapterKey(AdapterDigest(sha256), AdapterScope(row.id)))
        async with self._database.write() as session:
            row = await content.locked(session, tenant, row.id)
            receipt = dict(row.purge_receipt or {})
            row.purge_receipt = receipt | {"replicas": with_dropped(receipt.get("replicas", {}), dropped)}

    async def _finish(self, caller: Caller, name: AdapterName, tenant: VerifiedTenantId) -> Adapter:
        async with self._database.write() as session:
            row = await repository.open_adapter(session, tenant, name.adapter, deleted=True)
            row = await content.locked(session, tenant, row.id)
            if row.purged_at is None:
                receipt = dict(row.purge_receipt or {"replicas": {}})
                receipt["versions"] = [
                    {
                        "version": version.number,
                        "sha256": version.sha256,
                        "files": len(version.files),
                        "bytes": version.size_bytes,
                    }
                    for version in await content.versions_of(session, row.id)
                    if version.state != VersionState.REJECTED
                ]
                row.purged_at, row.purge_receipt, row.revision = self._now(), receipt, row.revision + 1
                audit.append(session, tenant, caller, "adapter.purge", name.bare, receipt=receipt)
                await changes.record(session, Change(Kind.ADAPTER, row.id))
            return row

    async def _open(
        self, session: AsyncSession, caller: Caller, name: AdapterName, etag: str
    ) -> tuple[VerifiedTenantId, Adapter]:
        _, tenant = await open_tenant(session, caller, name.tenant)
        row = await repository.open_adapter(session, tenant, name.adapter, deleted=True)
        row = await content.locked(session, tenant, row.id)
        check_etag(etag, adapter_etag(row))
        return tenant, row


@dataclass(frozen=True, slots=True)
class _Retention:
    """The platform itself, which ends an adapter whose time is up and follows purges of others."""

    tenant: TenantId
    role: str = Role.PLATFORM_ADMIN


def of_the_system(adapter: Adapter) -> Caller:
    """The platform itself, for the tenant of this adapter, which was read with it."""
    tenant = verify_tenant(_Retention(TenantId(adapter.tenant_id)), TenantId(adapter.tenant_id))
    return Caller(tenant, adapter.tenant.name, "system", Role.PLATFORM_ADMIN, "system", True)


def with_dropped(before: dict[str, dict[str, int]], dropped: dict[str, Purged]) -> dict[str, dict[str, Any]]:
    """A receipt's ``replicas`` with what they dropped now."""
    total = {replica: dict(counts) for replica, counts in before.items()}
    for replica, one in dropped.items():
        counts = total.setdefault(replica, asdict(Purged()))
        for key, value in asdict(one).items():
            counts[key] = counts.get(key, 0) + value
    return total


__all__ = [
    "DUE_AT_ONCE",
    "PURGED",
    "RETAIN",
    "LifecycleService",
    "Purged",
    "Replicas",
    "of_the_system",
    "with_dropped",
]

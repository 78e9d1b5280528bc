"""Setting, reading and taking away quotas."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry import audit, changes
from lorry.registry.adapters import repository as adapters
from lorry.registry.authz import Caller, VerifiedTenantId, not_visible
from lorry.registry.changes import Change, Kind
from lorry.registry.db.base import new_id
from lorry.registry.db.conflicts import unique
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import Adapter, Quota
from lorry.registry.etags import NEW, check_etag, etag_of
from lorry.registry.grants import repository as grants
from lorry.registry.leases import repository as leases
from lorry.registry.leases.months import month_of
from lorry.registry.leases.repository import Use
from lorry.registry.limits import repository
from lorry.registry.limits.bounds import LimitValues
from lorry.registry.names import AdapterName
from lorry.registry.paging import Page, PageRequest
from lorry.registry.rights import require
from lorry.registry.tenants.repository import lock_tenant, open_tenant


@dataclass(frozen=True, slots=True)
class QuotaView:
    """A quota with the name of its adapter ("" for the tenant's own). ``use`` is None where it was not asked for or no
    month's tokens are limited."""

    row: Quota
    adapter: str
    month: str = ""
    use: Use | None = None


def quota_etag(row: Quota) -> str:
    return etag_of("quota", row.id, row.revision)


class QuotaService:
    """Quotas are set and taken away by the platform's administrators; a tenant's readers read its own.
    ``clock``: Unix seconds. Raises RoleTooLow, and ResourceNotFound for what is not there or not the caller's."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def set(
        self, caller: Caller, tenant_name: str, adapter: AdapterName | None, limits: LimitValues, etag: str = ""
    ) -> QuotaView:
        """In place of the limits that were there; equal ones are answered as they are. ``adapter`` None is everything
        that the tenant does; else it needs an active grant on it.

        Raises InvalidRequest for limits out of bounds, AlreadyExists and StaleEtag as ``check_etag``.
        """
        require(caller, "set quotas")
        limits.check()
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            found = None if adapter is None else await _granted(session, tenant, adapter)
            adapter_id, name = (None, "") if found is None or adapter is None else (found.id, adapter.bare)
            await lock_tenant(session, tenant)  # so that of two at once the second finds what the first made
            row = await repository.lock_of(session, tenant, adapter_id)
            check_etag(etag, None if row is None else quota_etag(row))
            if row is None:
                row = Quota(id=new_id("qu"), tenant_id=tenant, adapter_id=adapter_id, revision=1)
                row.created_by = caller.key_id
                _put(row, limits)
                session.add(row)
                if etag == NEW:
                    async with unique(session, f"etag: {NEW!r} asks for one that is not there yet, but it is"):
                        pass
            elif _limits_of(row) == limits:
                return QuotaView(row, name)
            else:
                if limits.tokens_per_month is None:
                    await leases.forget(session, row.id)
                _put(row, limits)
                row.revision += 1
            subject = f"tenants/{tenant_name}/quotas/{row.id}"
            audit.append(session, tenant, caller, "quota.set", subject, adapter=name, limits=asdict(limits))
            await changes.record(session, Change(Kind.QUOTA, f"{tenant}/{adapter_id or ''}"))
            return QuotaView(row, name)

    async def list(self, caller: Caller, tenant_name: str, page: PageRequest) -> Page[QuotaView]:
        """With what is used of this month's tokens. A quota stays without its grant, and is in force again with it."""
        require(caller, "list quotas")
        month = month_of(self._clock())
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            found = page.page(await repository.list_page(session, tenant, page), repository.key)
            limited = [row for row in found.rows if row.tokens_per_month is not None]
            used = {row.id: await leases.use(session, row, month, self._clock()) for row in limited}
            rows = [QuotaView(row, _name_of(row), month, used.get(row.id)) for row in found.rows]
            return Page(rows, found.next_token)

    async def delete(self, caller: Caller, tenant_name: str, quota_id: str, etag: str = "") -> None:
        """Idempotent. What was used this month is counted again from the ledger where a new one limits it."""
        require(caller, "delete quotas")
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            row = await repository.lock(session, tenant, quota_id)
            if row is None:
                return
            check_etag(etag, quota_etag(row))
            await leases.forget(session, row.id)
            await session.delete(row)
            audit.append(session, tenant, caller, "quota.delete", f"tenants/{tenant_name}/quotas/{quota_id}")
            await changes.record(session, Change(Kind.QUOTA, f"{tenant}/{row.adapter_id or ''}"))


async def _granted(session: AsyncSession, tenant: VerifiedTenantId, name: AdapterName) -> Adapter:
    found = await adapters.find_by_name(session, name.tenant, name.adapter)
    granted = found and await grants.find_active(session, tenant, found.id, None)
    if found is None or granted is None or found.deleted_at is not None:
        raise not_visible()
    return found


def _limits_of(row: Quota) -> LimitValues:
    return LimitValues(**{name: getattr(row, name) for name in LimitValues.__dataclass_fields__})


def _put(row: Quota, limits: LimitValues) -> None:
    for name, value in asdict(limits).items():
        setattr(row, name, value)


def _name_of(row: Quota) -> str:
    return "" if row.adapter is None else f"tenants/{row.adapter.tenant.name}/adapters/{row.adapter.name}"


__all__ = ["QuotaService", "QuotaView", "quota_etag"]

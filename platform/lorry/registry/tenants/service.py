"""Tenants and API keys: who may make them, and what a change means."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from lorry.errors import FailedPrecondition, InvalidRequest
from lorry.registry import audit, changes
from lorry.registry.authz import Caller, VerifiedTenantId, not_visible
from lorry.registry.changes import Change, Kind
from lorry.registry.db.base import utcnow
from lorry.registry.db.conflicts import unique
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import ApiKey, Tenant
from lorry.registry.etags import check_etag, etag_of
from lorry.registry.idempotency import RequestKey, remember, replay
from lorry.registry.keys import Peppers
from lorry.registry.names import DISPLAY_NAME_MAX, check_part, check_text
from lorry.registry.paging import Page, PageRequest
from lorry.registry.rights import require
from lorry.registry.s3uris import check_prefixes
from lorry.registry.tenants import repository
from lorry.registry.tenants.roles import PLATFORM_TENANT, check_role
from lorry.request import WEIGHT_MAX

UPDATABLE = ("display_name", "suspended", "import_prefixes", "weight")
OVERLAP_MAX = timedelta(days=30)


def _check_weight(weight: int) -> None:
    if not 1 <= weight <= WEIGHT_MAX:
        raise InvalidRequest.field("weight", f"{weight}; use 1 to {WEIGHT_MAX}")


def tenant_etag(row: Tenant) -> str:
    return etag_of("tenant", row.id, row.revision)


class TenantService:
    """Every method raises RoleTooLow for a role that may not, and ResourceNotFound for what is not there or
    not the caller's to see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, caller: Caller, name: str, display_name: str = "", request_id: str = "", weight: int = 1
    ) -> Tenant:
        """Raises AlreadyExists."""
        require(caller, "create tenants")
        check_part("tenant_id", name)
        check_text("display_name", display_name, DISPLAY_NAME_MAX)
        _check_weight(weight)
        key = RequestKey.of(caller, "CreateTenant", request_id, name, display_name, *((weight,) if weight != 1 else ()))
        async with self._database.write() as session:
            if await replay(session, key) is not None:
                return (await repository.open_tenant(session, caller, name))[0]
            async with unique(session, f"tenant_id: {name!r} is taken; choose another"):
                row = await repository.insert_tenant(session, name, display_name, weight)
            _, tenant = await repository.open_tenant(session, caller, name)
            said = {"weight": weight} if weight != 1 else {}
            audit.append(session, tenant, caller, "tenant.create", f"tenants/{name}", **said)
            remember(session, key, row.id)
            await changes.record(session, Change(Kind.TENANT, row.id))
            return row

    async def get(self, caller: Caller, name: str) -> Tenant:
        async with self._database.read() as session:
            return (await repository.open_tenant(session, caller, name))[0]

    async def list(self, caller: Caller, page: PageRequest) -> Page[Tenant]:
        require(caller, "list tenants")
        async with self._database.read() as session:
            return page.page(await repository.list_tenants(session, page), lambda row: row.name)

    async def update(
        self,
        caller: Caller,
        name: str,
        fields: Collection[str],
        *,
        display_name: str = "",
        suspended: bool = False,
        import_prefixes: Sequence[str] = (),
        weight: int = 1,
        etag: str = "",
    ) -> Tenant:
        """Sets those of UPDATABLE that ``fields`` names. Raises StaleEtag where ``etag`` is given and not the current
        one."""
        require(caller, "change tenants")
        unknown = sorted(set(fields) - set(UPDATABLE))
        if unknown or not fields:
            raise InvalidRequest.field("update_mask", f"{unknown} cannot be set; use {', '.join(UPDATABLE)}")
        check_text("display_name", display_name, DISPLAY_NAME_MAX)
        prefixes = check_prefixes("import_prefixes", import_prefixes)
        if "weight" in fields:
            _check_weight(weight)
        if "suspended" in fields and suspended and name == PLATFORM_TENANT:
            raise FailedPrecondition(f"suspended: tenant {name!r} administers the platform; it cannot be")
        async with self._database.write() as session:
            _, tenant = await repository.open_tenant(session, caller, name)
            row = await repository.lock_tenant(session, tenant)
            check_etag(etag, tenant_etag(row))
            said: dict[str, object] = {"fields": sorted(set(fields))}
            if "display_name" in fields:
                row.display_name = display_name
            if "suspended" in fields:
                row.suspended = said["suspended"] = suspended
            if "import_prefixes" in fields:
                row.import_prefixes = said["import_prefixes"] = prefixes
            if "weight" in fields:
                row.weight = said["weight"] = weight
            row.revision += 1
            audit.append(session, tenant, caller, "tenant.update", f"tenants/{name}", **said)
            await changes.record(session, Change(Kind.TENANT, row.id))
            return row


class KeyService:
    """API keys: an owner's own tenant's, an administrator's everybody's. As TenantService for errors."""

    def __init__(self, database: Database, peppers: Peppers) -> None:
        self._database = database
        self._peppers = peppers

    async def create(
        self,
        caller: Caller,
        tenant_name: str,
        principal: str,
        role: str,
        expires_at: datetime | None = None,
        request_id: str = "",
    ) -> tuple[ApiKey, str]:
        """The row and the key's text, which is kept nowhere, so it is "" where ``request_id`` repeats a request. A role
        above the caller's own is RoleTooLow."""
        require(caller, "create API keys")
        check_part("principal", principal)
        check_role(caller, tenant_name, role)
        request = RequestKey.of(caller, "CreateApiKey", request_id, tenant_name, principal, role, _in_words(expires_at))
        async with self._database.write() as session:
            _, tenant = await repository.open_tenant(session, caller, tenant_name)
            if (made := await replay(session, request)) is not None:
                return await _made(session, tenant, made), ""
            _check_expiry(expires_at)
            await repository.lock_tenant(session, tenant)  # so that of two at once the second finds the principal
            owner = await repository.find_principal(session, tenant, principal)
            if owner is None:
                owner = await repository.insert_principal(session, tenant, principal, role)
            elif owner.role != role:
                raise InvalidRequest.field(
                    "role",
                    f"principal {principal!r} is {owner.role!r} and stays so here; use that, or another principal",
                )
            key = self._peppers.new_key()
            row = await repository.insert_key(session, tenant, owner, key, expires_at)
            subject = f"tenants/{tenant_name}/apiKeys/{row.id}"
            audit.append(session, tenant, caller, "key.create", subject, principal=principal, role=role)
            remember(session, request, row.id)
            await changes.record(session, Change(Kind.API_KEY, row.id))
            return row, key.text

    async def rotate(
        self,
        caller: Caller,
        tenant_name: str,
        key_id: str,
        overlap: timedelta = timedelta(0),
        expires_at: datetime | None = None,
        request_id: str = "",
    ) -> tuple[ApiKey, str]:
        """A new key of the same principal, with its text as ``create`` has it. The old one ends after ``overlap`` (0 to
        30 days) or when it would have by itself, whichever is earlier. Without an overlap it is revoked, so that no
        gateway's clock that is behind lets it live on. Raises FailedPrecondition for a key that is revoked or expired.
        """
        require(caller, "rotate API keys")
        if not timedelta(0) <= overlap <= OVERLAP_MAX:
            raise InvalidRequest.field("overlap", f"{overlap} is out of range; use 0 to {OVERLAP_MAX.days} days")
        request = RequestKey.of(
            caller, "RotateApiKey", request_id, tenant_name, key_id, overlap.total_seconds(), _in_words(expires_at)
        )
        async with self._database.write() as session:
            _, tenant = await repository.open_tenant(session, caller, tenant_name)
            if (made := await replay(session, request)) is not None:
                return await _made(session, tenant, made), ""
            _check_expiry(expires_at)
            old = await repository.lock_key(session, tenant, key_id)
            if old is None:
                raise not_visible()
            name, now = f"tenants/{tenant_name}/apiKeys/{key_id}", utcnow()
            if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
                ended = "expired" if old.revoked_at is None else "revoked"
                raise FailedPrecondition(f"name: {name} is {ended}; use CreateApiKey")
            end = now + overlap
            old.expires_at = end if old.expires_at is None else min(old.expires_at, end)
            if not overlap:
                old.revoked_at = now
            key = self._peppers.new_key()
            row = await repository.insert_key(session, tenant, old.principal, key, expires_at)
            said = {"new_key": row.id, "old_key_ends": old.expires_at.isoformat()}
            audit.append(session, tenant, caller, "key.rotate", name, **said)
            remember(session, request, row.id)
            await changes.record(session, Change(Kind.API_KEY, old.id), Change(Kind.API_KEY, row.id))
            return row, key.text

    async def list(self, caller: Caller, tenant_name: str, page: PageRequest) -> Page[ApiKey]:
        """Those that ended too."""
        require(caller, "list API keys")
        async with self._database.read() as session:
            _, tenant = await repository.open_tenant(session, caller, tenant_name)
            return page.page(await repository.list_keys(session, tenant, page), lambda row: row.id)

    async def revoke(self, caller: Caller, tenant_name: str, key_id: str) -> ApiKey:
        """Idempotent: the first revocation's time stays."""
        require(caller, "revoke API keys")
        async with self._database.write() as session:
            _, tenant = await repository.open_tenant(session, caller, tenant_name)
            row = await repository.lock_key(session, tenant, key_id)
            if row is None:
                raise not_visible()
            if row.revoked_at is None:
                row.revoked_at = utcnow()
                audit.append(session, tenant, caller, "key.revoke", f"tenants/{tenant_name}/apiKeys/{key_id}")
                await changes.record(session, Change(Kind.API_KEY, row.id))
            return row


async def _made(session: AsyncSession, tenant: VerifiedTenantId, key_id: str) -> ApiKey:
    row = await repository.lock_key(session, tenant, key_id)
    if row is None:
        raise not_visible()
    return row


def _in_words(expires_at: datetime | None) -> str:
    return "" if expires_at is None else expires_at.isoformat()


def _check_expiry(expires_at: datetime | None) -> None:
    if expires_at is not None and expires_at <= utcnow():
        raise InvalidRequest.field("expire_time", f"{expires_at.isoformat()} is past; use a later one, or none")


__all__ = ["OVERLAP_MAX", "PLATFORM_TENANT", "KeyService", "TenantService", "tenant_etag"]

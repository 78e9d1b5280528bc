"""First start: the schema, the secrets, the platform's own tenant and one administrator's key."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from lorry.errors import AlreadyExists
from lorry.ids import TenantId
from lorry.registry import audit, changes
from lorry.registry.authz import Caller, Role, VerifiedTenantId, verify_tenant
from lorry.registry.changes import Change, Kind
from lorry.registry.db.conflicts import unique
from lorry.registry.db.engine import Database, open_database
from lorry.registry.keys import Peppers
from lorry.registry.migrating import migrate
from lorry.registry.secretfiles import SecretError, Secrets, have_secret, make_secrets
from lorry.registry.tenants import repository
from lorry.registry.tenants.service import PLATFORM_TENANT

ADMIN_PRINCIPAL = "admin"
_ACTOR = "system"
"""In place of a key's id: nobody has one yet, or whoever sits at the machine asked."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """``admin_key`` is the first administrator's key, on the first start alone: print it once, it is kept
    nowhere."""

    url: str = field(repr=False)
    secrets: Secrets = field(repr=False)
    admin_key: str | None = field(repr=False)

    @property
    def peppers(self) -> Peppers:
        return self.secrets.peppers


class _Operator(NamedTuple):
    """Who can read the secrets of this machine is the platform's administrator."""

    tenant: TenantId
    role: str


async def bootstrap(home: Path, url: str, environ: Mapping[str, str] = os.environ) -> Bootstrap:
    """Brings schema, secrets and the platform tenant to be; later starts change nothing.

    Raises SecretError where the registry has keys but their pepper is gone: a new one would end every key.
    """
    await asyncio.to_thread(home.mkdir, parents=True, exist_ok=True)
    await migrate(url)
    database = open_database(url)
    try:
        async with database.read() as session:
            known = await repository.find_tenant(session, PLATFORM_TENANT) is not None
        if known and not have_secret(home, environ):
            raise SecretError(
                f"{home / 'secrets'}: the registry has keys, but the pepper they were made with is not here; "
                "restore it from your backup"
            )
        secrets = make_secrets(home, environ)
        key = None if known else await _first_admin(database, secrets.peppers)
        return Bootstrap(url, secrets, key)
    finally:
        await database.close()


async def issue_admin_key(database: Database, peppers: Peppers) -> str:
    """Another administrator's key, for an operator at the machine who lost the first. Answers its text."""
    async with database.write() as session:
        row = await repository.find_tenant(session, PLATFORM_TENANT)
        if row is None:
            raise SecretError("registry: there is no platform tenant yet; run the first start")
        text, change = await _admin_key(session, peppers, _open(TenantId(row.id)))
        await changes.record(session, change)
        return text


async def _first_admin(database: Database, peppers: Peppers) -> str | None:
    """None where another process was first."""
    try:
        async with database.write() as session:
            async with unique(session, "the platform tenant is there"):
                row = await repository.insert_tenant(session, PLATFORM_TENANT, "Platform")
            tenant = _open(TenantId(row.id))
            audit.append(session, tenant, _system(tenant), "tenant.create", f"tenants/{PLATFORM_TENANT}")
            text, change = await _admin_key(session, peppers, tenant)
            await changes.record(session, Change(Kind.TENANT, row.id), change)
            return text
    except AlreadyExists:
        return None


def _open(tenant: TenantId) -> VerifiedTenantId:
    return verify_tenant(_Operator(tenant, Role.PLATFORM_ADMIN), tenant)


def _system(tenant: VerifiedTenantId) -> Caller:
    return Caller(tenant, PLATFORM_TENANT, ADMIN_PRINCIPAL, Role.PLATFORM_ADMIN, _ACTOR, True)


async def _admin_key(session: AsyncSession, peppers: Peppers, tenant: VerifiedTenantId) -> tuple[str, Change]:
    principal = await repository.find_principal(session, tenant, ADMIN_PRINCIPAL)
    if principal is None:
        principal = await repository.insert_principal(session, tenant, ADMIN_PRINCIPAL, Role.PLATFORM_ADMIN)
    key = peppers.new_key()
    await repository.insert_key(session, tenant, principal, key, None)
    subject = f"tenants/{PLATFORM_TENANT}/apiKeys/{key.key_id}"
    role = Role.PLATFORM_ADMIN.value
    audit.append(session, tenant, _system(tenant), "key.create", subject, principal=ADMIN_PRINCIPAL, role=role)
    return key.text, Change(Kind.API_KEY, key.key_id)


__all__ = ["ADMIN_PRINCIPAL", "Bootstrap", "bootstrap", "issue_admin_key"]

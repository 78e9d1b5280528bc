"""SQL on logins and on what slows their guessing down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import contains_eager

from lorry.registry.accounts.throttle import Count
from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.base import new_id
from lorry.registry.db.conflicts import insert_into
from lorry.registry.db.tables import ApiKey, Login, LoginThrottle, Principal, Tenant
from lorry.registry.paging import PageRequest

SWEEP = 100
"""Throttles that nobody needs any more, deleted at a time."""


class Found(NamedTuple):
    """A login with its principal and tenant."""

    login: Login
    tenant: Tenant


async def find_by_username(session: AsyncSession, principal: str, tenant: str) -> Found | None:
    """Unverified: its password decides next."""
    query = _JOINED.where(Principal.name == principal, Tenant.name == tenant)
    return _found((await session.execute(query)).one_or_none())


async def lock_by_id(session: AsyncSession, login_id: str) -> Found | None:
    """Unverified: of who has just shown its password. Nobody else changes it until the transaction's end."""
    query = _JOINED.where(Login.id == login_id).with_for_update(of=Login, key_share=True)
    return _found((await session.execute(query)).one_or_none())


async def lock_login(session: AsyncSession, tenant: VerifiedTenantId, principal: str) -> Found | None:
    query = _JOINED.where(Principal.tenant_id == tenant, Principal.name == principal).with_for_update(
        of=Login, key_share=True
    )
    return _found((await session.execute(query)).one_or_none())


async def list_logins(session: AsyncSession, tenant: VerifiedTenantId, page: PageRequest) -> Sequence[Found]:
    """By name."""
    query = _JOINED.where(Principal.tenant_id == tenant, Principal.name > page.after)
    rows = (await session.execute(query.order_by(Principal.name).limit(page.size + 1))).all()
    return [Found(row[0], row[1]) for row in rows]


async def insert_login(
    session: AsyncSession, tenant: VerifiedTenantId, principal: Principal, password_hash: str, by: str
) -> Login:
    assert principal.tenant_id == tenant
    row = Login(
        id=new_id("lg"), principal_id=principal.id, password_hash=password_hash, created_by=by, principal=principal
    )
    session.add(row)
    await session.flush()
    return row


async def active_keys(session: AsyncSession, tenant: VerifiedTenantId, principal: Principal) -> Sequence[str]:
    """Ids of the principal's API keys that are not revoked."""
    keys = select(ApiKey.id).where(
        ApiKey.tenant_id == tenant, ApiKey.principal_id == principal.id, ApiKey.revoked_at.is_(None)
    )
    return (await session.execute(keys.order_by(ApiKey.id))).scalars().all()


async def lock_counts(session: AsyncSession, subjects: Sequence[str], now: float) -> dict[str, Count]:
    """Of each subject, made where there is none. Nobody else counts them until the transaction's end."""
    for _ in range(3):  # one that was there may be swept away before its lock is had
        for subject in sorted(subjects):
            first = insert_into(session, LoginThrottle).values(subject=subject, failures=0, forget_at=_time(now + 60))
            await session.execute(first.on_conflict_do_nothing())
        query = select(LoginThrottle).where(LoginThrottle.subject.in_(subjects)).order_by(LoginThrottle.subject)
        rows = (
            (await session.execute(query.with_for_update().execution_options(populate_existing=True))).scalars().all()
        )
        if len(rows) == len(set(subjects)):
            break
    return {row.subject: _count(row) for row in rows}


async def read_counts(session: AsyncSession, subjects: Sequence[str]) -> dict[str, Count]:
    """Of those that have one."""
    query = select(LoginThrottle).where(LoginThrottle.subject.in_(subjects))
    return {row.subject: _count(row) for row in (await session.execute(query)).scalars()}


async def put_counts(session: AsyncSession, counts: Mapping[str, Count]) -> None:
    """Of subjects that are locked."""
    for subject, count in sorted(counts.items()):
        locked = _time(count.locked_until) if count.locked_until else None
        step = update(LoginThrottle).where(LoginThrottle.subject == subject)
        await session.execute(
            step.values(failures=count.failures, locked_until=locked, forget_at=_time(count.forget_at))
        )


async def forget_counts(session: AsyncSession, now: float) -> None:
    """Some of those whose time is over. Passes over what others have locked, so that nobody waits in a circle."""
    old = select(LoginThrottle.subject).where(LoginThrottle.forget_at < _time(now)).order_by(LoginThrottle.forget_at)
    subjects = (await session.execute(old.limit(SWEEP).with_for_update(skip_locked=True))).scalars().all()
    if subjects:
        await session.execute(delete(LoginThrottle).where(LoginThrottle.subject.in_(subjects)))


_JOINED = (
    select(Login, Tenant)
    .join(Principal, Principal.id == Login.principal_id)
    .join(Tenant, Tenant.id == Principal.tenant_id)
    .options(contains_eager(Login.principal))
    .execution_options(populate_existing=True)
)


def _found(row: object) -> Found | None:
    return None if row is None else Found(*row)  # type: ignore[misc]  # a row of _JOINED


def _count(row: LoginThrottle) -> Count:
    locked = row.locked_until.timestamp() if row.locked_until else 0.0
    return Count(row.failures, locked, row.forget_at.timestamp())


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


__all__ = [
    "Found",
    "active_keys",
    "find_by_username",
    "forget_counts",
    "insert_login",
    "list_logins",
    "lock_by_id",
    "lock_counts",
    "lock_login",
    "put_counts",
    "read_counts",
]

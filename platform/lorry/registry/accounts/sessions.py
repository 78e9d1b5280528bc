"""SQL on web sessions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import contains_eager

from lorry.registry.accounts.cookies import NewCookie
from lorry.registry.accounts.repository import Found
from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.tables import Login, Principal, Tenant, WebSession
from lorry.registry.paging import PageRequest

KEPT = timedelta(days=30)
"""Rows of sessions stay for so long after their expiry."""
SWEEP = 100


async def insert_session(
    session: AsyncSession,
    login: Login,
    cookie: NewCookie,
    agent: str,
    address: str,
    now: datetime,
    expires_at: datetime,
) -> WebSession:
    """Of a login whose password was just shown."""
    row = WebSession(
        id=cookie.session_id,
        login_id=login.id,
        mac=cookie.mac,
        pepper_id=cookie.pepper_id,
        agent=agent,
        address=address,
        created_at=now,
        seen_at=now,
        expires_at=expires_at,
    )
    session.add(row)
    await session.flush()
    return row


async def find_session(
    session: AsyncSession, session_id: str, *, lock: bool = False
) -> tuple[WebSession, Found] | None:
    """Unverified: the browser's text, or the caller's tenant, decides next."""
    query = _WHOSE.where(WebSession.id == session_id)
    row = (await session.execute(query.with_for_update(of=WebSession, key_share=True) if lock else query)).one_or_none()
    return None if row is None else (row[0], Found(row[1], row[2]))


async def list_sessions(
    session: AsyncSession, tenant: VerifiedTenantId, page: PageRequest, now: datetime, idle: timedelta
) -> Sequence[tuple[WebSession, Found]]:
    """Those that could be resumed now, by id."""
    query = _WHOSE.where(
        Principal.tenant_id == tenant,
        WebSession.id > page.after,
        WebSession.ended_at.is_(None),
        WebSession.expires_at > now,
        WebSession.seen_at > now - idle,
        Login.disabled.is_(False),
    )
    rows = (await session.execute(query.order_by(WebSession.id).limit(page.size + 1))).all()
    return [(row[0], Found(row[1], row[2])) for row in rows]


async def touch_session(session: AsyncSession, session_id: str, now: datetime) -> None:
    step = update(WebSession).where(WebSession.id == session_id, WebSession.seen_at < now)
    await session.execute(step.values(seen_at=now))


async def end_sessions(
    session: AsyncSession, login_id: str, now: datetime, *, but: str = "", newest: int = 0
) -> Sequence[str]:
    """Ends a login's sessions, but for the one named ``but`` and the ``newest`` ones; answers their ids. Of a login
    that was opened or locked."""
    live = select(WebSession.id).where(
        WebSession.login_id == login_id, WebSession.ended_at.is_(None), WebSession.id != but
    )
    ids = (await session.execute(live.order_by(WebSession.created_at.desc(), WebSession.id))).scalars().all()[newest:]
    if ids:
        await session.execute(update(WebSession).where(WebSession.id.in_(ids)).values(ended_at=now))
    return ids


async def forget_sessions(session: AsyncSession, now: datetime) -> None:
    """Some of the rows that are older than ``KEPT``."""
    old = select(WebSession.id).where(WebSession.expires_at < now - KEPT).order_by(WebSession.expires_at)
    ids = (await session.execute(old.limit(SWEEP).with_for_update(skip_locked=True))).scalars().all()
    if ids:
        await session.execute(delete(WebSession).where(WebSession.id.in_(ids)))


_WHOSE = (
    select(WebSession, Login, Tenant)
    .join(Login, Login.id == WebSession.login_id)
    .join(Principal, Principal.id == Login.principal_id)
    .join(Tenant, Tenant.id == Principal.tenant_id)
    .options(contains_eager(Login.principal))
    .execution_options(populate_existing=True)
)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


__all__ = [
    "end_sessions",
    "find_session",
    "forget_sessions",
    "insert_session",
    "list_sessions",
    "moment",
    "touch_session",
]

"""SQL on audit events and the ends of their chains. What seals is synchronous: it runs inside a session's commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from lorry.registry.audit.chain import GENESIS, Event
from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.conflicts import insert_into
from lorry.registry.db.tables import AuditEvent, AuditHead


class Head(NamedTuple):
    """The end of a chain."""

    sequence: int
    hash: str


class Place(NamedTuple):
    """An event's, among all of its tenant: with the id, since a chain that was tampered with may have two of one
    sequence."""

    sequence: int
    id: str


def lock_head(session: Session, tenant: str) -> Head:
    """The end of the tenant's chain, which nobody else moves before this transaction ends."""
    query = select(AuditHead.sequence, AuditHead.hash).where(AuditHead.tenant_id == tenant).with_for_update()
    row = session.execute(query).one_or_none()
    if row is None:
        first = insert_into(session, AuditHead).values(tenant_id=tenant, sequence=0, hash=GENESIS)
        session.execute(first.on_conflict_do_nothing())
        row = session.execute(query).one()
    return Head(row.sequence, row.hash)


def move_head(session: Session, tenant: str, head: Head) -> None:
    step = update(AuditHead).where(AuditHead.tenant_id == tenant)
    session.execute(step.values(sequence=head.sequence, hash=head.hash))


def insert(session: Session, event: Event, sealed: str) -> None:
    session.add(
        AuditEvent(
            id=event.id,
            tenant_id=event.tenant,
            actor_key_id=event.actor,
            action=event.action,
            subject=event.subject,
            details=event.details,
            created_at=event.created_at,
            sequence=event.sequence,
            hash=sealed,
        )
    )


async def read_head(session: AsyncSession, tenant: VerifiedTenantId) -> Head | None:
    query = select(AuditHead.sequence, AuditHead.hash).where(AuditHead.tenant_id == tenant)
    row = (await session.execute(query)).one_or_none()
    return None if row is None else Head(row.sequence, row.hash)


async def totals(session: AsyncSession, tenant: VerifiedTenantId) -> tuple[int, int, int]:
    """(largest sequence among the chain's events, their number, the head's sequence), all as of one moment."""
    events = AuditEvent.tenant_id == tenant, AuditEvent.sequence.is_not(None)
    last = select(func.max(AuditEvent.sequence)).where(*events).scalar_subquery()
    count = select(func.count(AuditEvent.id)).where(*events).scalar_subquery()
    head = select(AuditHead.sequence).where(AuditHead.tenant_id == tenant).scalar_subquery()
    row = (await session.execute(select(last, count, head))).one()
    return row[0] or 0, row[1], row[2] or 0


async def chained(
    session: AsyncSession, tenant: VerifiedTenantId, after: Place | None, limit: int
) -> Sequence[AuditEvent]:
    """Events of the chain in its order: those behind ``after``; None is from the front, be it what it may."""
    query = select(AuditEvent).where(AuditEvent.tenant_id == tenant, AuditEvent.sequence.is_not(None))
    if after is not None:
        query = query.where(tuple_(AuditEvent.sequence, AuditEvent.id) > tuple_(*after))
    query = query.order_by(AuditEvent.sequence, AuditEvent.id).limit(limit)
    return (await session.execute(query)).scalars().all()


async def chained_newest_first(
    session: AsyncSession, tenant: VerifiedTenantId, before: int | None, limit: int
) -> Sequence[AuditEvent]:
    query = select(AuditEvent).where(AuditEvent.tenant_id == tenant, AuditEvent.sequence.is_not(None))
    if before is not None:
        query = query.where(AuditEvent.sequence < before)
    return (await session.execute(query.order_by(AuditEvent.sequence.desc()).limit(limit))).scalars().all()


async def unchained_newest_first(
    session: AsyncSession, tenant: VerifiedTenantId, before: str | None, limit: int
) -> Sequence[AuditEvent]:
    """Events outside the chain: of releases that had none."""
    query = select(AuditEvent).where(AuditEvent.tenant_id == tenant, AuditEvent.sequence.is_(None))
    if before is not None:
        query = query.where(AuditEvent.id < before)
    return (await session.execute(query.order_by(AuditEvent.id.desc()).limit(limit))).scalars().all()


async def count_unchained(session: AsyncSession, tenant: VerifiedTenantId) -> int:
    query = select(func.count()).where(AuditEvent.tenant_id == tenant, AuditEvent.sequence.is_(None))
    return (await session.execute(query)).scalar_one()


async def hash_at(session: AsyncSession, tenant: VerifiedTenantId, sequence: int) -> str | None:
    query = select(AuditEvent.hash).where(AuditEvent.tenant_id == tenant, AuditEvent.sequence == sequence)
    return (await session.execute(query.limit(1))).scalars().first()


__all__ = [
    "Head",
    "Place",
    "chained",
    "chained_newest_first",
    "count_unchained",
    "hash_at",
    "insert",
    "lock_head",
    "move_head",
    "read_head",
    "totals",
    "unchained_newest_first",
]

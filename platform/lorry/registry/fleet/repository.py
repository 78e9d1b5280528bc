"""SQL on replicas. They belong to no tenant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry.db.tables import ReplicaState, Residency
from lorry.registry.paging import PageRequest


async def find(session: AsyncSession, name: str) -> ReplicaState | None:
    return (await session.execute(select(ReplicaState).where(ReplicaState.name == name))).scalar_one_or_none()


async def seen_since(session: AsyncSession, after: datetime, page: PageRequest) -> Sequence[ReplicaState]:
    """By name."""
    query = select(ReplicaState).where(ReplicaState.seen_at >= after, ReplicaState.name > page.after)
    return (await session.execute(query.order_by(ReplicaState.name).limit(page.size + 1))).scalars().all()


async def forget_before(session: AsyncSession, before: datetime) -> None:
    """Of replicas that were not seen since."""
    gone = select(ReplicaState.name).where(ReplicaState.seen_at < before)
    await session.execute(delete(Residency).where(Residency.replica.in_(gone)))
    await session.execute(delete(ReplicaState).where(ReplicaState.seen_at < before))


__all__ = ["find", "forget_before", "seen_since"]

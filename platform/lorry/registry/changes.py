"""The change log: written last in each admin transaction, read by every snapshot.

Epochs are gap-free and in commit order because each transaction takes the counter row's lock before it
writes, and keeps it to its commit. (A sequence would not do: epoch 5 could be seen before epoch 4.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry.db.tables import ChangeLog, RegistryEpoch


class Kind(StrEnum):
    """What changed. The subject is the row's id; for PIN it is ``{tenant id}/{adapter id}``."""

    TENANT = "tenant"
    API_KEY = "api_key"
    BASE_MODEL = "base_model"
    ADAPTER = "adapter"
    GRANT = "grant"
    PIN = "pin"


@dataclass(frozen=True, slots=True)
class Change:
    kind: Kind
    subject: str


async def record(session: AsyncSession, *changes: Change) -> int:
    """Writes the changes under the next epoch, which it answers. Call it last before the commit."""
    await session.flush()
    step = update(RegistryEpoch).where(RegistryEpoch.id == 1).values(epoch=RegistryEpoch.epoch + 1)
    epoch = (await session.execute(step.returning(RegistryEpoch.epoch))).scalar_one()
    session.add_all(
        ChangeLog(epoch=epoch, ordinal=ordinal, kind=change.kind, subject=change.subject)
        for ordinal, change in enumerate(changes)
    )
    await session.flush()
    return epoch


async def current_epoch(session: AsyncSession) -> int:
    return (await session.execute(select(RegistryEpoch.epoch).where(RegistryEpoch.id == 1))).scalar_one()


async def read_after(session: AsyncSession, epoch: int, limit: int) -> Sequence[ChangeLog]:
    """The changes of later epochs, in order, at most ``limit`` rows."""
    query = select(ChangeLog).where(ChangeLog.epoch > epoch).order_by(ChangeLog.epoch, ChangeLog.ordinal).limit(limit)
    return (await session.execute(query)).scalars().all()


__all__ = ["Change", "Kind", "current_epoch", "read_after", "record"]

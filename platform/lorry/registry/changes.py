"""The change log: written last in each admin transaction, read by every snapshot.

Epochs are gap-free and in commit order because each transaction takes the counter row's lock before it
writes, and keeps it to its commit. (A sequence would not do: epoch 5 could be seen before epoch 4.)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry.db.tables import ChangeLog, RegistryEpoch
from lorry.registry.listening import announce


class Kind(StrEnum):
    """What changed. The subject is the row's id; for PIN it is ``{tenant id}/{adapter id}``, for QUOTA
    ``{tenant id}/{adapter id, or nothing for the tenant's own}``. Of logins and web sessions only
    what changes rights or takes them away is logged: of most of them no gateway ever hears."""

    TENANT = "tenant"
    API_KEY = "api_key"
    BASE_MODEL = "base_model"
    ADAPTER = "adapter"
    GRANT = "grant"
    PIN = "pin"
    QUOTA = "quota"
    LOGIN = "login"
    SESSION = "web_session"


@dataclass(frozen=True, slots=True)
class Change:
    kind: Kind
    subject: str


_now, _log = RegistryEpoch.__table__.c, ChangeLog.__table__.c
_AFTER = (
    select(_now.epoch, _log.epoch, _log.kind, _log.subject)
    .outerjoin_from(RegistryEpoch.__table__, ChangeLog.__table__, _log.epoch > bindparam("after"))
    .where(_now.id == 1)
    .order_by(_log.epoch, _log.ordinal)
    .limit(bindparam("most"))
)


class Logged(NamedTuple):
    """A change as it was logged; ``kind`` may be one of a newer release."""

    epoch: int
    kind: str
    subject: str


async def record(session: AsyncSession, *changes: Change) -> int:
    """Writes the changes under the next epoch, which it answers and which is announced when the transaction commits
    (``listening``). Call it last before the commit. Without a change there is no new epoch."""
    await session.flush()
    if not changes:
        return await current_epoch(session)
    step = update(RegistryEpoch).where(RegistryEpoch.id == 1).values(epoch=RegistryEpoch.epoch + 1)
    epoch = (await session.execute(step.returning(RegistryEpoch.epoch))).scalar_one()
    session.add_all(
        ChangeLog(epoch=epoch, ordinal=ordinal, kind=change.kind, subject=change.subject)
        for ordinal, change in enumerate(changes)
    )
    await session.flush()
    await announce(session, epoch)
    return epoch


async def current_epoch(session: AsyncSession) -> int:
    return (await session.execute(select(RegistryEpoch.epoch).where(RegistryEpoch.id == 1))).scalar_one()


def read_after(connection: Connection, epoch: int, limit: int) -> tuple[int, list[Logged]]:
    """The registry's epoch, and the changes of epochs after ``epoch``, in order, at most ``limit``."""
    rows = connection.execute(_AFTER, {"after": epoch, "most": limit}).all()
    return rows[0][0], [Logged(*row[1:]) for row in rows if row[1] is not None]


__all__ = ["Change", "Kind", "Logged", "current_epoch", "read_after", "record"]

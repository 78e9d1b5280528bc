"""Noting events, and sealing them into their tenants' chains at the commit of the transaction that made the change.

Events wait beside the session and are written by its ``before_commit`` alone, after everything else: a transaction
takes the change log's lock first (``changes.record``), then the ends of its tenants' chains in the order of their ids,
and keeps them to its commit. So nobody waits in a circle, sequences have no gaps and come in commit order, and no
service can forget to seal.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from lorry.registry.audit import repository
from lorry.registry.audit.chain import Event, event_hash, plain_json
from lorry.registry.authz import Caller, VerifiedTenantId
from lorry.registry.db.base import new_id, utcnow
from lorry.registry.db.engine import WriteSession

_WAITING = "lorry.audit"


def append(
    session: AsyncSession, tenant: VerifiedTenantId, caller: Caller, action: str, subject: str, **details: Any
) -> None:
    """``tenant`` is whose matter it is; ``caller`` who did it. ``details`` are what JSON can say, and never hold a
    secret or a prompt. The event is there if the transaction of ``session`` commits, and not otherwise.

    Raises RuntimeError where nothing could promise that: outside ``Database.write``, or in a savepoint.
    """
    if not isinstance(session.sync_session, WriteSession) or not session.in_transaction():
        raise RuntimeError(f"audit {action}: nothing would seal it here; append in a transaction of Database.write")
    if session.in_nested_transaction():
        raise RuntimeError(f"audit {action}: a savepoint may be rolled back alone; append outside of it")
    noted = Event(
        tenant=tenant,
        sequence=0,
        id=new_id("au"),
        actor=caller.key_id,
        action=action,
        subject=subject,
        details=plain_json(details),
        created_at=utcnow(),
    )
    session.info.setdefault(_WAITING, []).append(noted)


@event.listens_for(WriteSession, "before_commit")
def _seal(session: Session) -> None:
    if session.in_nested_transaction():
        return
    waiting: list[Event] = session.info.pop(_WAITING, [])
    if not waiting:
        return
    session.flush()
    for tenant, events in groupby(sorted(waiting, key=lambda one: one.tenant), lambda one: one.tenant):
        head = repository.lock_head(session, tenant)
        for noted in events:
            sealed = noted.at(head.sequence + 1)
            head = repository.Head(sealed.sequence, event_hash(head.hash, sealed))
            repository.insert(session, sealed, head.hash)
        repository.move_head(session, tenant, head)


@event.listens_for(WriteSession, "after_soft_rollback")
def _forget(session: Session, ended: SessionTransaction) -> None:
    if ended.parent is None:
        session.info.pop(_WAITING, None)


__all__ = ["append"]

"""``request_id``: the same id with the same request answers the same resource again, be the first try still running."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.errors import InvalidRequest
from lorry.registry.authz import Caller
from lorry.registry.db.engine import WriteSession
from lorry.registry.db.tables import Idempotency

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(frozen=True, slots=True)
class RequestKey:
    """One idempotent request of a caller's tenant. With an empty ``request_id`` nothing is remembered."""

    tenant: str
    method: str
    request_id: str
    sha256: str

    @classmethod
    def of(cls, caller: Caller, method: str, request_id: str, *content: object) -> RequestKey:
        """Raises InvalidRequest for an id outside the grammar. ``content`` is what makes requests equal."""
        if request_id and not _REQUEST_ID.fullmatch(request_id):
            raise InvalidRequest.field("request_id", "use 1 to 128 of A-Z, a-z, 0-9 and . _ : -")
        digest = hashlib.sha256(json.dumps([method, *content], sort_keys=True).encode()).hexdigest()
        return cls(caller.tenant, method, request_id, digest)


async def replay(session: AsyncSession, key: RequestKey) -> str | None:
    """The subject that an equal request was answered with, or None. InvalidRequest where it was not equal."""
    if not key.request_id:
        return None
    await _lock(session, key)
    row = (
        await session.execute(
            select(Idempotency).where(
                Idempotency.tenant_id == key.tenant,
                Idempotency.method == key.method,
                Idempotency.request_id == key.request_id,
            )
        )
    ).scalar_one_or_none()
    if row is None:
        return None
    if row.request_sha256 != key.sha256:
        raise InvalidRequest.field("request_id", f"{key.request_id!r} was used for another request; use a new one")
    return row.subject


async def _lock(session: AsyncSession, key: RequestKey) -> None:
    """In a transaction that may make the subject: until it ends no other one looks for this key, so that who comes
    second finds what the first made. On SQLite its one writer is enough."""
    if isinstance(session.sync_session, WriteSession) and session.get_bind().dialect.name == "postgresql":
        name = hashlib.sha256("\0".join((key.tenant, key.method, key.request_id)).encode()).digest()
        await session.execute(select(func.pg_advisory_xact_lock(int.from_bytes(name[:8], signed=True))))


def remember(session: AsyncSession, key: RequestKey, subject: str) -> None:
    """In the transaction that made ``subject``."""
    if key.request_id:
        session.add(
            Idempotency(
                tenant_id=key.tenant,
                method=key.method,
                request_id=key.request_id,
                request_sha256=key.sha256,
                subject=subject,
            )
        )


__all__ = ["RequestKey", "remember", "replay"]

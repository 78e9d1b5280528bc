"""Reading and verifying what was done to a tenant."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lorry.errors import InvalidRequest
from lorry.registry.audit import repository
from lorry.registry.audit.chain import GENESIS, Break, Event, Walk
from lorry.registry.authz import Caller, VerifiedTenantId
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import AuditEvent
from lorry.registry.paging import Page, PageRequest, bad_token
from lorry.registry.rights import require
from lorry.registry.tenants.repository import open_tenant

PAGE = 1000
"""Events that a check has in memory at a time."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"s\.(?P<sequence>[0-9]{1,18})|o\.(?P<id>[A-Za-z0-9_]{0,48})")


@dataclass(frozen=True, slots=True)
class Verification:
    """``events`` were looked at. ``head_hash`` is that of the newest event that follows, "" where there is none.
    ``broken_sequence`` and ``problem`` name the first that does not, 0 and "" where all do; but a chain that is intact
    beside events of releases before 0003, which nothing protects, has a ``problem`` that counts them."""

    intact: bool
    events: int
    head_hash: str
    broken_sequence: int
    problem: str


class AuditService:
    """A tenant's readers read its own, a platform administrator all. Raises RoleTooLow, and ResourceNotFound
    for a tenant that is not there or not the caller's to see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, caller: Caller, tenant_name: str, page: PageRequest) -> Page[AuditEvent]:
        """Newest first; those outside the chain, which are older than it, after all others."""
        require(caller, "read audit events")
        sequence, row_id = _position(page.after)
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            rows: list[AuditEvent] = []
            if row_id is None:
                rows += await repository.chained_newest_first(session, tenant, sequence, page.size + 1)
            if len(rows) <= page.size:
                rows += await repository.unchained_newest_first(session, tenant, row_id, page.size + 1 - len(rows))
        return page.page(rows, lambda row: f"o.{row.id}" if row.sequence is None else f"s.{row.sequence}")

    async def verify(
        self, caller: Caller, tenant_name: str, known_hash: str = "", known_sequence: int = 0
    ) -> Verification:
        """Goes through the whole chain, a page at a time, while others may append. ``known_hash`` was noted when
        ``known_sequence`` was the newest: the chain must still contain it."""
        require(caller, "verify audit events")
        if known_hash and not _SHA256.fullmatch(known_hash):
            raise InvalidRequest.field("known_hash", f"{known_hash[:80]!r} is not 64 lower-case hex digits")
        if bool(known_hash) != bool(known_sequence) or not 0 <= known_sequence < 1 << 63:
            raise InvalidRequest.field(
                "known_sequence", f"{known_sequence} beside known_hash {known_hash!r}; send both as noted, or neither"
            )
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            outside = await repository.count_unchained(session, tenant)
        walk = await self._walk(tenant)
        found = [walk.broken, await self._unknown(tenant, known_hash, known_sequence) if known_hash else None]
        walk.broken = min((one for one in found if one is not None), key=lambda one: one.sequence, default=None)
        problem = walk.broken.problem if walk.broken is not None else ""
        if outside and walk.broken is None:
            problem = f"{outside} events of before the chain began are in no chain; nothing says whether they changed"
        return Verification(
            intact=walk.broken is None,
            events=walk.events,
            head_hash=walk.hash if walk.hash != GENESIS else "",
            broken_sequence=walk.broken.sequence if walk.broken is not None else 0,
            problem=problem,
        )

    async def _walk(self, tenant: VerifiedTenantId) -> Walk:
        """Up to the head as it was first: what others append meanwhile is looked at by the next check."""
        walk, limit = Walk(), PAGE
        after: repository.Place | None = None
        async with self._database.read() as session:
            head = await repository.read_head(session, tenant) or repository.Head(0, GENESIS)
        while walk.broken is None:
            try:
                async with self._database.read() as session:
                    rows = await repository.chained(session, tenant, after, limit)
            except ValueError as error:  # what is stored is no JSON or no time: found by looking at one at a time
                if limit == 1:
                    walk.broken = Break(walk.sequence + 1, f"the event here cannot be read: {error}")
                limit = 1
                continue
            walk.take((_event(row), row.hash) for row in rows if (row.sequence or 0) <= head.sequence)
            if len(rows) < limit:
                break
            after = repository.Place(rows[-1].sequence or 0, rows[-1].id)
            if after.sequence > head.sequence:
                break
        walk.end(*head)
        if walk.broken is None:
            async with self._database.read() as session:
                last, count, end = await repository.totals(session, tenant)
            if not last == count == end:
                problem = f"there are {count} events with sequences up to {last}, and by the head it is {end}"
                walk.broken = Break(min(last, count, end) + 1, problem)
        return walk

    async def _unknown(self, tenant: VerifiedTenantId, known_hash: str, known_sequence: int) -> Break | None:
        async with self._database.read() as session:
            found = await repository.hash_at(session, tenant, known_sequence)
        if found == known_hash:
            return None
        have = "there is no such event" if found is None else f"the event there has {found}"
        return Break(known_sequence, f"known_hash: {known_hash} was noted for it, but {have}")


def _position(key: str) -> tuple[int | None, str | None]:
    """(before which sequence, before which row outside the chain) a page goes on."""
    if not key:
        return None, None
    found = _KEY.fullmatch(key)
    if found is None:
        raise bad_token()
    return (None, found["id"]) if found["sequence"] is None else (int(found["sequence"]), None)


def _event(row: AuditEvent) -> Event:
    return Event(
        tenant=row.tenant_id,
        sequence=row.sequence or 0,
        id=row.id,
        actor=row.actor_key_id,
        action=row.action,
        subject=row.subject,
        details=row.details,
        created_at=row.created_at,
    )


__all__ = ["PAGE", "AuditService", "Verification"]

"""What replicas say of themselves, and what an operator wants of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from lorry.errors import FailedPrecondition
from lorry.registry import audit
from lorry.registry.authz import Caller, not_visible
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import ReplicaState
from lorry.registry.fleet import repository
from lorry.registry.fleet.observed import Held, changes, kept
from lorry.registry.paging import Page, PageRequest
from lorry.registry.rights import require

VISIBLE = timedelta(hours=1)
"""A replica that was not seen for so long is not listed; after a day it is forgotten."""
FORGOTTEN = timedelta(days=1)


class ReplicaKind(StrEnum):
    GATEWAY = "gateway"
    ENGINE = "engine"


class Doing(StrEnum):
    SERVING = "SERVING"
    DRAINING = "DRAINING"
    DOWN = "DOWN"


@dataclass(frozen=True, slots=True)
class Sighting:
    """A replica now. ``epoch`` is of a gateway's snapshot, ``base_sha256`` of an engine."""

    name: str
    kind: ReplicaKind
    doing: Doing
    address: str = ""
    build: str = ""
    base_sha256: str = ""
    epoch: int = 0
    running: int = 0


class FleetService:
    """``report`` is the replicas' own; everything else raises RoleTooLow below a platform administrator, and
    ResourceNotFound for a replica that was not seen lately."""

    def __init__(self, database: Database, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database = database
        self._now = now

    async def report(self, seen: Sighting, copies: Held | None = None) -> bool:
        """Whether an operator wants it to take nothing new. ``copies``: what an engine has now, of which what
        changed is written; None leaves it as it was told before."""
        async with self._database.write() as session:
            row = await repository.find(session, seen.name)
            if row is None:
                await repository.forget_before(session, self._now() - FORGOTTEN)
                row = ReplicaState(name=seen.name, drain=False)
                session.add(row)
            row.kind, row.state, row.address = seen.kind.value, seen.doing.value, seen.address
            row.build, row.base_sha256 = seen.build, seen.base_sha256
            row.registry_epoch, row.running, row.seen_at = seen.epoch, seen.running, self._now()
            if copies is not None:
                row.copies_seen_at = row.seen_at
                await session.flush()  # rows of copies refer to it
                before = await repository.copies_on(session, seen.name)
                await repository.change_copies(session, seen.name, *changes(before, kept(copies)))
            return row.drain

    async def list(self, caller: Caller, page: PageRequest) -> Page[ReplicaState]:
        require(caller, "list replicas")
        async with self._database.read() as session:
            rows = await repository.seen_since(session, self._now() - VISIBLE, page)
            return page.page(rows, lambda row: row.name)

    async def get(self, caller: Caller, name: str) -> ReplicaState:
        require(caller, "read replicas")
        async with self._database.read() as session:
            row = await repository.find(session, name)
            if row is None or row.seen_at < self._now() - VISIBLE:
                raise not_visible()
            return row

    async def drain(self, caller: Caller, name: str, wanted: bool) -> ReplicaState:
        """The gateway finds out with its next report. Idempotent. Raises FailedPrecondition for an engine."""
        require(caller, "drain replicas")
        async with self._database.write() as session:
            row = await repository.find(session, name)
            if row is None or row.seen_at < self._now() - VISIBLE:
                raise not_visible()
            if row.kind != ReplicaKind.GATEWAY:
                raise FailedPrecondition(f"name: {name} is an engine; drain the gateways before it, or end its process")
            if row.drain != wanted:
                row.drain = wanted
                action = "replica.drain" if wanted else "replica.undrain"
                audit.append(session, caller.tenant, caller, action, f"replicas/{name}")
            return row


__all__ = ["FORGOTTEN", "VISIBLE", "Doing", "FleetService", "ReplicaKind", "Sighting"]

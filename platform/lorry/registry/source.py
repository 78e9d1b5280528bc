"""Keeps a snapshot current: polls the change log and applies deltas; a full reload only on a gap."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from lorry.errors import Unavailable
from lorry.ids import TenantId
from lorry.registry import changes, loading
from lorry.registry.changes import Kind
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import ChangeLog
from lorry.registry.entries import GrantEntry, PinEntry
from lorry.registry.keys import Peppers
from lorry.registry.snapshot import Snapshot, Tables

DELTA_ROWS = 1000
"""Changes read at a time. More of them than this is cheaper as a full reload."""

_KINDS = frozenset(Kind)
"""A newer release may log kinds that this one does not know; then everything is read again."""

_log = logging.getLogger(__name__)


class SnapshotSource:
    """The gateway's view of the registry. Belongs to one event loop.

    ``start`` loads the first snapshot; ``run`` polls until cancelled and survives an unreachable database,
    keeping the last snapshot (``age`` says how old it is); ``refresh`` is one poll.
    """

    def __init__(
        self,
        database: Database,
        peppers: Peppers,
        poll_seconds: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._peppers = peppers
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._checked_at = clock()
        self._lock = asyncio.Lock()
        self.full_loads = 0
        """How often everything was read: 1 after ``start``, more only after gaps."""

    def current(self) -> Snapshot:
        """The newest snapshot. Raises Unavailable before the first one is loaded."""
        if self._snapshot is None:
            raise Unavailable("registry: no snapshot is loaded yet; try again", retry_after_s=1.0)
        return self._snapshot

    def age(self) -> float:
        """Seconds since the registry last answered a poll."""
        return self._clock() - self._checked_at

    async def start(self) -> Snapshot:
        """Loads the first snapshot; the database's own error goes through."""
        return await self.refresh()

    async def run(self) -> None:
        """Polls until cancelled."""
        failing = False
        while True:
            try:
                await self.refresh()
                if failing:
                    _log.warning("registry answers again at epoch %d", self.current().epoch)
                failing = False
            except Exception as error:  # the last snapshot holds until it can be read again
                if not failing:
                    _log.error("registry cannot be read, keeping the last snapshot: %s", error.__cause__ or error)
                failing = True
            await asyncio.sleep(self._poll_seconds)

    async def refresh(self) -> Snapshot:
        """Brings the snapshot up to the registry's epoch as of now, and answers it."""
        async with self._lock:
            asked_at = self._clock()
            async with self._database.read() as session:
                snapshot = await self._advance(session)
            self._snapshot, self._checked_at = snapshot, asked_at
            return snapshot

    async def _advance(self, session: AsyncSession) -> Snapshot:
        old = self._snapshot
        if old is None:
            return await self._load(session)
        epoch = await changes.current_epoch(session)
        if epoch == old.epoch:
            return old
        log = await changes.read_after(session, old.epoch, DELTA_ROWS)
        gap = not log or log[0].epoch != old.epoch + 1 or len(log) == DELTA_ROWS
        if gap or any(change.kind not in _KINDS for change in log):
            return await self._load(session)
        return await _apply(session, old, log)

    async def _load(self, session: AsyncSession) -> Snapshot:
        self.full_loads += 1
        epoch = await changes.current_epoch(session)
        tables = Tables(
            tenants={row.id: row for row in await loading.tenants(session, None)},
            keys={row.key_id: row for row in await loading.keys(session, None)},
            bases={row.id: row for row in await loading.bases(session, None)},
            adapters={row.id: row for row in await loading.adapters(session, None)},
            grants=_grants_by_tenant(await loading.grants(session, None)),
            pins=_pins_by_tenant(await loading.pins(session, None)),
        )
        return Snapshot.build(epoch, tables, self._peppers)


async def _apply(session: AsyncSession, old: Snapshot, log: Sequence[ChangeLog]) -> Snapshot:
    wanted: dict[Kind, set[str]] = {kind: set() for kind in Kind}
    for change in log:
        wanted[Kind(change.kind)].add(change.subject)
    pairs = [(tenant, adapter) for tenant, _, adapter in (subject.partition("/") for subject in wanted[Kind.PIN])]
    pins = {(pin.tenant, pin.adapter): pin for pin in await loading.pins(session, pairs)} if pairs else {}
    return old.replace(
        log[-1].epoch,
        tenants=await loading.tenants(session, wanted[Kind.TENANT]) if wanted[Kind.TENANT] else (),
        keys=await loading.keys(session, wanted[Kind.API_KEY]) if wanted[Kind.API_KEY] else (),
        bases=await loading.bases(session, wanted[Kind.BASE_MODEL]) if wanted[Kind.BASE_MODEL] else (),
        adapters=await loading.adapters(session, wanted[Kind.ADAPTER]) if wanted[Kind.ADAPTER] else (),
        grants=await loading.grants(session, wanted[Kind.GRANT]) if wanted[Kind.GRANT] else (),
        pins=[(TenantId(tenant), adapter, pins.get((TenantId(tenant), adapter))) for tenant, adapter in pairs],
    )


def _grants_by_tenant(rows: Sequence[GrantEntry]) -> dict[str, dict[str, GrantEntry]]:
    found: dict[str, dict[str, GrantEntry]] = {}
    for row in rows:
        found.setdefault(row.tenant, {})[row.resource] = row
    return found


def _pins_by_tenant(rows: Sequence[PinEntry]) -> dict[str, dict[str, PinEntry]]:
    found: dict[str, dict[str, PinEntry]] = {}
    for row in rows:
        found.setdefault(row.tenant, {})[row.adapter] = row
    return found


__all__ = ["SnapshotSource"]

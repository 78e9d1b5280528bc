"""Purges that other processes ran: the engines behind this one forget what was purged, and the receipt says so.

The process that purges has its own engines forget an adapter; another's have it on their disks and may have it in
memory. Each process therefore reads the log of changes, and once all that was ever purged, when it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from typing import Protocol

from lorry.ids import AdapterDigest, AdapterKey, AdapterScope
from lorry.registry import audit
from lorry.registry.adapters import content
from lorry.registry.adapters.lifecycle import Purged, Replicas, of_the_system, with_dropped
from lorry.registry.changes import Kind, current_epoch, read_after
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import Adapter

BATCH = 1000
"""Changes of one round; where more were made since the last, all that was ever purged is looked through instead."""
_PAGE = 500


class Holders(Replicas, Protocol):
    async def held(self, scopes: Collection[AdapterScope]) -> Collection[AdapterKey]:
        """Versions of the adapters with these ids that some engine has a copy of. Raises Unavailable."""


class PurgeFollower:
    """Of one process. ``follow`` is one round, not for several at a time."""

    def __init__(self, database: Database, engines: Holders) -> None:
        self._database = database
        self._engines = engines
        self._epoch: int | None = None
        """Everything that was purged up to it is forgotten; None before the first round has ended."""

    async def follow(self) -> int:
        """Of how many adapters something was dropped. Raises Unavailable where the registry or an engine does not
        answer; nothing is passed over: the next round begins where this one did."""
        if self._epoch is None:
            return await self._all()
        _, log = await self._database.of_one_moment(partial(read_after, epoch=self._epoch, limit=BATCH))
        if len(log) == BATCH:
            return await self._all()
        changed = sorted({one.subject for one in log if one.kind == Kind.ADAPTER})
        dropped = 0
        for start in range(0, len(changed), _PAGE):
            async with self._database.read() as session:
                found = await content.purged_of(session, changed[start : start + _PAGE])
            dropped += await self._forget(found)
        if log:
            self._epoch = log[-1].epoch
        return dropped

    async def _all(self) -> int:
        async with self._database.read() as session:
            epoch = await current_epoch(session)
        dropped, last = 0, ""
        while True:
            async with self._database.read() as session:
                page = await content.purged_after(session, last, _PAGE)
            if not page:
                self._epoch = epoch
                return dropped
            last = page[-1].id
            scopes = {one.scope for one in await self._engines.held([AdapterScope(row.id) for row in page])}
            dropped += await self._forget([row for row in page if row.id in scopes])

    async def _forget(self, adapters: Sequence[Adapter]) -> int:
        count = 0
        for row in adapters:
            async with self._database.read() as session:
                digests = sorted({version.sha256 for version in await content.versions_of(session, row.id)})
            dropped: dict[str, dict[str, int]] = {}
            for sha256 in digests:
                key = AdapterKey(AdapterDigest(sha256), AdapterScope(row.id))
                dropped = with_dropped(dropped, await self._engines.forget(key))
            dropped = {replica: one for replica, one in dropped.items() if any(one.values())}
            if dropped:
                await self._note(row, dropped)
                count += 1
        return count

    async def _note(self, adapter: Adapter, dropped: dict[str, dict[str, int]]) -> None:
        system = of_the_system(adapter)
        async with self._database.write() as session:
            row = await content.purged_one(session, system.tenant, adapter.id)
            receipt = dict(row.purge_receipt or {})
            found = {replica: Purged(**one) for replica, one in dropped.items()}
            row.purge_receipt = receipt | {"replicas": with_dropped(receipt.get("replicas", {}), found)}
            name = f"tenants/{system.tenant_name}/adapters/{adapter.name}"
            noted = {replica: asdict(one) for replica, one in found.items()}
            audit.append(session, system.tenant, system, "adapter.purge_follow", name, replicas=noted)


__all__ = ["BATCH", "Holders", "PurgeFollower"]

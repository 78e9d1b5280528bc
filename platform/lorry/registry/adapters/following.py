"""Purges, wherever they ran: what is behind this process forgets what was purged, and the receipt says so.

The process that purges has its own engines forget an adapter; another's have it on their disks and may have it in
memory. Each process therefore reads the log of changes, and all that was ever purged when it starts and now and then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from lorry.errors import LorryError
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope
from lorry.registry import audit
from lorry.registry.adapters import content
from lorry.registry.adapters.lifecycle import Purged, Replicas, of_the_system, with_dropped
from lorry.registry.changes import Kind, current_epoch, read_after
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import Adapter

BATCH = 1000
"""Changes of one round."""
AGAIN = 30
"""Each so many rounds everything is looked through: a request that came before its gateway had heard, or a preload that
was under way, may have brought bytes back that another adapter has too."""
_PAGE = 500


class Holders(Replicas, Protocol):
    async def held(self, scopes: Collection[AdapterScope]) -> Collection[AdapterKey]:
        """Versions of the adapters with these ids that some engine has a copy of. Raises Unavailable."""


class Texts(Protocol):
    """The gateway's copies of versions' text files (``lorry.gateway.texts.VersionTexts``)."""

    async def forget(self, scope: AdapterScope) -> None: ...


class PurgeFollower:
    """Of one process. ``follow`` is one round, not for several at a time."""

    def __init__(self, database: Database, engines: Holders, texts: Texts | None = None) -> None:
        self._database = database
        self._engines = engines
        self._texts = texts
        self._rounds = 0
        self._epoch: int | None = None
        """Everything that was purged up to it is forgotten; None before the first round has ended."""
        self._pending: set[str] = set()
        """Adapters that could not be forgotten, or noted, yet: each round tries them again."""
        self._unnoted: dict[str, dict[str, dict[str, Any]]] = {}
        """What was dropped and is on no receipt yet, by adapter and replica."""

    async def follow(self) -> int:
        """Of how many adapters something was dropped and noted. One that cannot be forgotten now holds up no other: its
        error is raised at the end, and the next round tries it again."""
        known, looking, errors = self._epoch, self._rounds % AGAIN == 0, list[LorryError]()
        self._rounds += 1
        if known is None:
            dropped = await self._all(False, errors)
        else:
            epoch, log = await self._database.of_one_moment(partial(read_after, epoch=known, limit=BATCH))
            if epoch < known or len(log) == BATCH or (log and log[0].epoch != known + 1):
                dropped = await self._all(True, errors)  # too many, or a registry that was set back to what it was
            else:
                changed = {one.subject for one in log if one.kind == Kind.ADAPTER}
                dropped = await self._changed(sorted(changed | self._pending), errors)
                self._epoch = epoch
                if looking:
                    dropped += await self._all(False, errors)
        if errors:
            raise errors[0]
        return dropped

    async def _changed(self, ids: Sequence[str], errors: list[LorryError]) -> int:
        dropped = 0
        for start in range(0, len(ids), _PAGE):
            batch = ids[start : start + _PAGE]
            async with self._database.read() as session:
                found = await content.purged_of(session, batch)
            self._pending.difference_update(batch)
            dropped += await self._forget(found, errors)
        return dropped

    async def _all(self, whole: bool, errors: list[LorryError]) -> int:
        """All that was ever purged: of it what an engine says that it has, or ``whole``, since engines may have cached
        keys and values alone of what they do not name."""
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
            if not whole:
                scopes = {one.scope for one in await self._engines.held([AdapterScope(row.id) for row in page])}
                page = [row for row in page if row.id in scopes]
            dropped += await self._forget(page, errors)

    async def _forget(self, adapters: Sequence[Adapter], errors: list[LorryError]) -> int:
        count = 0
        for row in adapters:
            self._pending.add(row.id)
            try:
                count += await self._forget_one(row)
                self._pending.discard(row.id)
            except LorryError as error:
                errors.append(error)
        return count

    async def _forget_one(self, adapter: Adapter) -> bool:
        scope = AdapterScope(adapter.id)
        if self._texts is not None:
            await self._texts.forget(scope)
        async with self._database.read() as session:
            digests = sorted({version.sha256 for version in await content.versions_of(session, adapter.id)})
        for sha256 in digests:
            found = await self._engines.forget(AdapterKey(AdapterDigest(sha256), scope))
            found = {replica: one for replica, one in found.items() if one != Purged()}
            if found:
                self._unnoted[adapter.id] = with_dropped(self._unnoted.get(adapter.id, {}), found)
        if adapter.id not in self._unnoted:
            return False
        await self._note(adapter, {replica: Purged(**one) for replica, one in self._unnoted[adapter.id].items()})
        del self._unnoted[adapter.id]
        return True

    async def _note(self, adapter: Adapter, dropped: dict[str, Purged]) -> None:
        system = of_the_system(adapter)
        async with self._database.write() as session:
            row = await content.locked(session, system.tenant, adapter.id)
            receipt = dict(row.purge_receipt or {})
            row.purge_receipt = receipt | {"replicas": with_dropped(receipt.get("replicas", {}), dropped)}
            name = f"tenants/{system.tenant_name}/adapters/{adapter.name}"
            noted = {replica: asdict(one) for replica, one in dropped.items()}
            audit.append(session, system.tenant, system, "adapter.purge_follow", name, replicas=noted)


__all__ = ["AGAIN", "BATCH", "Holders", "PurgeFollower", "Texts"]

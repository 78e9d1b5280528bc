"""Which versions engines have, as the gateways before them told the registry: observations, never authority."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from lorry.ids import AdapterKey, AdapterScope, BaseDigest
from lorry.registry.db.engine import Database
from lorry.registry.fleet import repository

VERSIONS_KEPT = 1000
"""Of one engine: those on its device first, then those in host memory."""
FRESH = timedelta(seconds=60)
"""What an engine had longer ago than that is not told."""


class Places(NamedTuple):
    device: bool = False
    host: bool = False
    disk: bool = False


Held = Mapping[AdapterKey, Places]
"""An engine's copies."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A version on an engine at ``at``."""

    replica: str
    adapter: AdapterKey
    places: Places
    at: datetime


class ObservedCopies:
    """For services that have looked whether the caller may know. ``besides``: engines that are not told of."""

    def __init__(self, database: Database, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database = database
        self._now = now

    async def serving(self, base: BaseDigest, besides: Collection[str]) -> bool:
        """Whether an engine that serves the base was seen."""
        async with self._database.read() as session:
            return await repository.is_served(session, base, besides, self._now() - FRESH)

    async def of_version(self, adapter: AdapterKey, besides: Collection[str]) -> list[Seen]:
        return [one for one in await self.of_adapters([adapter.scope], besides) if one.adapter == adapter]

    async def of_adapters(self, scopes: Collection[AdapterScope], besides: Collection[str]) -> list[Seen]:
        """Of these adapters alone, by replica."""
        async with self._database.read() as session:
            rows = await repository.copies_of(session, scopes, besides, self._now() - FRESH)
        return [Seen(replica, adapter, Places(*places), at) for replica, adapter, places, at in rows]


def kept(copies: Held) -> Held:
    """The ``VERSIONS_KEPT`` that are nearest to the device, in the order in which they came."""
    if len(copies) <= VERSIONS_KEPT:
        return copies
    near = sorted(copies.items(), key=lambda one: tuple(not place for place in one[1]))
    return dict(near[:VERSIONS_KEPT])


def changes(before: Mapping[AdapterKey, tuple[bool, bool, bool]], now: Held) -> tuple[Collection[AdapterKey], Held]:
    """What is no more as it was, and what has to be there in its place or anew."""
    other = {adapter: places for adapter, places in now.items() if before.get(adapter) != places}
    return [adapter for adapter in before if adapter not in now or adapter in other], other


__all__ = ["FRESH", "VERSIONS_KEPT", "Held", "ObservedCopies", "Places", "Seen", "changes", "kept"]

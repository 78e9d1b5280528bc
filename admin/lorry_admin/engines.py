"""The engines behind this platform, as the admin services see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lorry.adapters.manifest import AdapterRef
from lorry.engine.contract import EngineClient, EngineInfo, Forgotten, Whereabouts
from lorry.engine.views import MemoryView, QueueView, VersionCopies
from lorry.errors import EngineUnavailable, LorryError
from lorry.ids import AdapterKey, AdapterScope, BaseDigest
from lorry.registry.adapters.lifecycle import Purged

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """What one engine said. ``found`` None: nothing, and ``why``; its name is then unknown as well."""

    replica: str
    found: T | None
    why: str = ""


class EngineReplicas:
    """Every method raises EngineUnavailable where an engine that it needs does not answer."""

    def __init__(self, engines: Sequence[EngineClient]) -> None:
        self._engines = tuple(engines)

    async def forget(self, adapter: AdapterKey) -> dict[str, Purged]:
        """As ``lorry.registry.adapters.lifecycle.Replicas``: all engines, whatever their base."""
        found: dict[str, Purged] = {}
        for engine in self._engines:
            info = await engine.info()
            found[info.replica] = _purged(await engine.forget(adapter))
        return found

    async def whereabouts(self, base: str, ref: AdapterRef) -> list[tuple[str, Whereabouts]]:
        """On each engine that serves the base, with its replica's name; it may be none."""
        return [(info.replica, await engine.whereabouts(ref.key)) for engine, info in await self._of_base(base)]

    async def names(self) -> set[str]:
        """Of all their replicas."""
        return {(await engine.info()).replica for engine in self._engines}

    async def preload(self, base: str, ref: AdapterRef, wait_s: float) -> None:
        for engine, _ in await self._serving(base):
            await engine.preload(ref, wait_s)

    async def evict(self, base: str, ref: AdapterRef) -> None:
        for engine, _ in await self._serving(base):
            await engine.evict(ref.key)

    async def memory(self) -> list[Told[MemoryView]]:
        """Of every engine; of those that do not answer why."""
        return [await _told(engine, engine.memory) for engine in self._engines]

    async def queues(self) -> list[Told[QueueView]]:
        """As ``memory``."""
        return [await _told(engine, engine.queue) for engine in self._engines]

    async def copies(self, scopes: Collection[AdapterScope]) -> list[tuple[str, tuple[VersionCopies, ...]]]:
        """Of the adapters with these ids, on each engine, with its replica's name."""
        return [((await engine.info()).replica, await engine.copies(scopes)) for engine in self._engines]

    async def held(self, scopes: Collection[AdapterScope]) -> set[AdapterKey]:
        """As ``lorry.registry.adapters.following.Holders``."""
        return {one.adapter for _, found in await self.copies(scopes) for one in found}

    async def _serving(self, base: str) -> list[tuple[EngineClient, EngineInfo]]:
        found = await self._of_base(base)
        if not found:
            raise unserved()
        return found

    async def _of_base(self, base: str) -> list[tuple[EngineClient, EngineInfo]]:
        known = [(engine, await engine.info()) for engine in self._engines]
        return [(engine, info) for engine, info in known if info.base == BaseDigest(base)]


def unserved() -> EngineUnavailable:
    return EngineUnavailable("no engine serves the version's base now; try again", retry_after_s=1.0)


async def _told(engine: EngineClient, ask: Callable[[], Awaitable[T]]) -> Told[T]:
    try:
        return Told((await engine.info()).replica, await ask())
    except LorryError as error:
        return Told("", None, error.message)


def _purged(found: Forgotten) -> Purged:
    return Purged(found.disk_bytes, found.host_bytes, found.device_slots, found.kv_pages)


__all__ = ["EngineReplicas", "Told", "unserved"]

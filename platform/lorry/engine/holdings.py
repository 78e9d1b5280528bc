"""What an engine has of one version, from the slot table to the disk: looked at, brought in, dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Protocol, TypeVar

from lorry.adapters.manifest import AdapterRef
from lorry.adapters.tier_views import TierSight
from lorry.engine import sights
from lorry.engine.contract import Forgotten, Whereabouts
from lorry.engine.views import MemoryView, QueueView, VersionCopies
from lorry.errors import AdapterObjectMissing, DeadlineExceeded, EngineUnavailable
from lorry.ids import AdapterKey, AdapterScope
from lorry.residency.host import Failed, HostState, Ready
from lorry.scheduler import Scheduler

POLL_S = 0.01
"""How often a version on its way to the host is looked after."""
T = TypeVar("T")


class Copies(Protocol):
    """The host and disk tiers (``lorry.adapters.tiers.HostTierStore``); from any thread."""

    def ensure(self, ref: AdapterRef) -> HostState: ...
    def forget(self, adapter: AdapterKey) -> tuple[int, int]: ...
    def sizes(self, adapter: AdapterKey) -> tuple[int, int]: ...
    def sight(self) -> TierSight: ...


class Loop(Protocol):
    """The step loop (``lorry.engine.core.EngineCore``)."""

    def ask(self, question: Callable[[], T]) -> Future[T]: ...


class Holdings:
    """The version's side of ``EngineClient``. The scheduler is asked on the loop's thread, between two steps."""

    def __init__(self, loop: Loop, scheduler: Scheduler[AdapterRef], copies: Copies) -> None:
        self._loop = loop
        self._scheduler = scheduler
        self._versions = scheduler.versions
        self._copies = copies

    async def whereabouts(self, adapter: AdapterKey) -> Whereabouts:
        tier, live = await self._ask(lambda: (self._versions.tier_of(adapter), self._versions.live_on(adapter)))
        host, disk = self._copies.sizes(adapter)
        return Whereabouts(tier == "device", host > 0, disk > 0, live)

    async def memory(self) -> MemoryView:
        return await self._ask(lambda: sights.memory_view(self._scheduler, self._copies))

    async def copies(self, scopes: Collection[AdapterScope]) -> tuple[VersionCopies, ...]:
        return await self._ask(lambda: sights.copies_of(self._scheduler, self._copies, scopes))

    async def queue(self) -> QueueView:
        return await self._ask(lambda: sights.queue_view(self._scheduler))

    async def preload(self, ref: AdapterRef, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                while not isinstance(state := self._copies.ensure(ref), Ready):
                    if isinstance(state, Failed):
                        raise state.error
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise DeadlineExceeded(
                f"adapter {ref.digest} was not in host memory after {wait_s:g} s; it is still on its way, ask again"
            ) from None

    async def evict(self, adapter: AdapterKey) -> bool:
        return await self._ask(lambda: self._versions.evict(adapter))

    async def forget(self, adapter: AdapterKey) -> Forgotten:
        gone = AdapterObjectMissing(f"adapter {adapter} was purged; its bytes are destroyed")
        slots, pages = await self._ask(lambda: self._versions.forget(adapter, gone))
        host, disk = await asyncio.to_thread(self._copies.forget, adapter)
        return Forgotten(disk, host, slots, pages)

    async def _ask(self, question: Callable[[], T]) -> T:
        answer = self._loop.ask(question)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if not answer.cancelled():
                raise
            raise EngineUnavailable("the engine has stopped", retry_after_s=1.0) from None


__all__ = ["POLL_S", "Copies", "Holdings", "Loop"]

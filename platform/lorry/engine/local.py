"""EngineClient in the same process: the step loop on its own thread, readers on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from lorry.adapters.manifest import AdapterRef
from lorry.engine.contract import (
    EngineClient,
    EngineEvent,
    EngineInfo,
    EngineRequest,
    Finished,
    Forgotten,
    Whereabouts,
)
from lorry.engine.core import EngineCore, Outcome
from lorry.engine.holdings import Holdings
from lorry.engine.metrics import EngineMetrics
from lorry.engine.views import MemoryView, QueueView, VersionCopies
from lorry.errors import AlreadyExists, Draining, EngineUnavailable, LorryError
from lorry.ids import AdapterKey, AdapterScope, RequestId

T = TypeVar("T")


class LocalEngine(EngineClient):
    """Owns the core's thread: made running, ended by ``close``. Belongs to one event loop."""

    def __init__(
        self, core: EngineCore, info: EngineInfo, holdings: Holdings, on_close: Callable[[], None] = lambda: None
    ) -> None:
        self._core = core
        self._info = info
        self._holdings = holdings
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._readers: dict[RequestId, asyncio.Queue[EngineEvent | LorryError]] = {}
        self._live: set[RequestId] = set()
        self._calls = itertools.count()
        self._closed = False
        self.ended = asyncio.Event()
        """Set when the step loop has ended, by ``close`` or by a fault."""
        self._warm = asyncio.Event()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        core.start(self._sink, self._note_end, self._note_warm)

    async def info(self) -> EngineInfo:
        """Waits until the loop has warmed up. Raises Draining too."""
        self._check()
        await self._warm.wait()
        self._check()
        return self._info

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        self._check()
        if request.request_id in self._live:
            raise AlreadyExists(f"request_id {request.request_id!r} is in use by a live request; choose another")
        # The core knows calls, each once: what is still on its way for an id that ended reaches no later request.
        call = RequestId(f"{request.request_id}#{next(self._calls)}")
        queue: asyncio.Queue[EngineEvent | LorryError] = asyncio.Queue()
        self._live.add(request.request_id)
        self._idle.clear()
        self._readers[call] = queue
        done = False
        try:
            self._core.submit(replace(request, request_id=call))
            while not done:
                event = await queue.get()
                if isinstance(event, LorryError):
                    done = True
                    raise event
                done = isinstance(event, Finished)
                yield event
        finally:
            self._readers.pop(call, None)
            self._live.discard(request.request_id)
            if not self._live:
                self._idle.set()
            if not done:
                self._core.abort(call)

    async def state(self) -> dict[str, Any]:
        return await self._told(self._core.state())

    async def metrics(self) -> EngineMetrics:
        found = await self._told(self._core.metrics())
        return replace(found, build=self._info.engine_build, dtype=self._info.dtype)

    async def whereabouts(self, adapter: AdapterKey) -> Whereabouts:
        return await self._holdings.whereabouts(adapter)

    async def memory(self) -> MemoryView:
        return await self._holdings.memory()

    async def copies(self, scopes: Collection[AdapterScope]) -> tuple[VersionCopies, ...]:
        return await self._holdings.copies(scopes)

    async def queue(self) -> QueueView:
        return await self._holdings.queue()

    async def preload(self, ref: AdapterRef, wait_s: float) -> None:
        self._check()
        await self._holdings.preload(ref, wait_s)

    async def evict(self, adapter: AdapterKey) -> bool:
        return await self._holdings.evict(adapter)

    async def forget(self, adapter: AdapterKey) -> Forgotten:
        return await self._holdings.forget(adapter)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._core.stop)
        error = EngineUnavailable("the engine was closed", retry_after_s=1.0)
        for queue in list(self._readers.values()):
            queue.put_nowait(error)
        await asyncio.to_thread(self._on_close)

    async def drain(self, limit_s: float) -> None:
        """From now on new requests are refused with Draining; returns when those that live have ended, or after
        ``limit_s`` seconds. ``close`` ends the rest."""
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._idle.wait()

    async def _told(self, answer: Future[T]) -> T:
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if self._core.alive:
                raise
            raise EngineUnavailable("the engine has stopped", retry_after_s=1.0) from None

    def _check(self) -> None:
        if self._closed or not self._core.alive:
            raise EngineUnavailable("the engine has stopped", retry_after_s=1.0)
        if self._draining:
            raise Draining("the engine is going down; send the request again", retry_after_s=1.0)

    def _sink(self, outcomes: Sequence[Outcome]) -> None:
        """Called on the core's thread, once or twice a step."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, outcomes)
        except RuntimeError:
            # The loop is gone: there is nobody left to tell, and the core is about to be stopped.
            return

    def _note_warm(self) -> None:
        self._tell_loop(self._warm.set)

    def _note_end(self) -> None:
        self._tell_loop(self.ended.set)
        self._tell_loop(self._warm.set)

    def _tell_loop(self, told: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(told)
        except RuntimeError:
            return  # as in _sink

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        for request_id, event in outcomes:
            queue = self._readers.get(request_id)
            if queue is not None:
                queue.put_nowait(event)


__all__ = ["LocalEngine"]

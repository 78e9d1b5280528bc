"""EngineClient in the same process: the step loop on its own thread, readers on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from lorry.engine.contract import EngineClient, EngineEvent, EngineInfo, EngineRequest, Finished
from lorry.engine.core import EngineCore, Outcome
from lorry.errors import EngineUnavailable, InvalidRequest, LorryError
from lorry.ids import RequestId


class LocalEngine(EngineClient):
    """Owns the core's thread: made running, ended by ``close``. Belongs to one event loop."""

    def __init__(self, core: EngineCore, info: EngineInfo, on_close: Callable[[], None] = lambda: None) -> None:
        self._core = core
        self._info = info
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._readers: dict[RequestId, asyncio.Queue[EngineEvent | LorryError]] = {}
        self._closed = False
        core.start(self._sink)

    async def info(self) -> EngineInfo:
        if self._closed or not self._core.alive:
            raise EngineUnavailable("the engine has stopped", retry_after_s=1.0)
        return self._info

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        if self._closed or not self._core.alive:
            raise EngineUnavailable("the engine has stopped", retry_after_s=1.0)
        if request.request_id in self._readers:
            raise InvalidRequest.field("request_id", f"{request.request_id!r} is in use; choose another")
        queue: asyncio.Queue[EngineEvent | LorryError] = asyncio.Queue()
        self._readers[request.request_id] = queue
        done = False
        try:
            self._core.submit(request)
            while not done:
                event = await queue.get()
                if isinstance(event, LorryError):
                    done = True
                    raise event
                done = isinstance(event, Finished)
                yield event
        finally:
            self._readers.pop(request.request_id, None)
            if not done:
                self._core.abort(request.request_id)

    async def state(self) -> dict[str, Any]:
        try:
            return await asyncio.wrap_future(self._core.state())
        except asyncio.CancelledError:
            if self._core.alive:
                raise
            raise EngineUnavailable("the engine has stopped", retry_after_s=1.0) from None

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._core.stop)
        error = EngineUnavailable("the engine was closed", retry_after_s=1.0)
        for queue in list(self._readers.values()):
            queue.put_nowait(error)
        await asyncio.to_thread(self._on_close)

    def _sink(self, outcomes: Sequence[Outcome]) -> None:
        """Called on the core's thread, once a step."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, outcomes)
        except RuntimeError:
            # The loop is gone: there is nobody left to tell, and the core is about to be stopped.
            return

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        for request_id, event in outcomes:
            queue = self._readers.get(request_id)
            if queue is not None:
                queue.put_nowait(event)


__all__ = ["LocalEngine"]

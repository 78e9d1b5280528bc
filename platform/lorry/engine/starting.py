"""What an engine's process serves from its first moment: refusals until the engine behind it is warm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

from lorry.adapters.manifest import AdapterRef
from lorry.engine.contract import EngineClient, EngineEvent, EngineInfo, EngineRequest, Forgotten, Whereabouts
from lorry.engine.metrics import EngineMetrics
from lorry.engine.views import MemoryView, QueueView, VersionCopies
from lorry.errors import EngineUnavailable
from lorry.ids import AdapterKey, AdapterScope


class StartingEngine(EngineClient):
    """Every method raises EngineUnavailable until ``open``; then it is that engine."""

    def __init__(self) -> None:
        self._engine: EngineClient | None = None

    def open(self, engine: EngineClient) -> None:
        """``engine`` is warm."""
        self._engine = engine

    async def info(self) -> EngineInfo:
        return await self._warm().info()

    def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        return self._warm().generate(request)

    async def state(self) -> dict[str, Any]:
        return await self._warm().state()

    async def metrics(self) -> EngineMetrics:
        return await self._warm().metrics()

    async def whereabouts(self, adapter: AdapterKey) -> Whereabouts:
        return await self._warm().whereabouts(adapter)

    async def memory(self) -> MemoryView:
        return await self._warm().memory()

    async def copies(self, scopes: Collection[AdapterScope]) -> tuple[VersionCopies, ...]:
        return await self._warm().copies(scopes)

    async def queue(self) -> QueueView:
        return await self._warm().queue()

    async def preload(self, ref: AdapterRef, wait_s: float) -> None:
        await self._warm().preload(ref, wait_s)

    async def evict(self, adapter: AdapterKey) -> bool:
        return await self._warm().evict(adapter)

    async def forget(self, adapter: AdapterKey) -> Forgotten:
        return await self._warm().forget(adapter)

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()

    def _warm(self) -> EngineClient:
        if self._engine is None:
            raise EngineUnavailable("the engine is loading its base; try again", retry_after_s=1.0)
        return self._engine


__all__ = ["StartingEngine"]

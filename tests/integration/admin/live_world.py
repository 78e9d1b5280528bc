"""Admin services over engines that tests choose: what operators see of them, over the wire both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from lorry.adapters.store import DirectoryStore
from lorry.api.status import ErrorInterceptor
from lorry.client.admin import AdminClient
from lorry.engine.contract import EngineClient, EngineRequest
from lorry.engine.parts import EngineParts
from lorry.engine.transport_client import GrpcEngineClient
from lorry.engine.transport_server import serve_engine
from lorry.errors import LorryError
from lorry.ids import TenantId
from lorry.registry import Registry
from lorry.registry.bootstrap import _first_admin
from lorry.registry.fleet.desk import Desk
from lorry.scheduler.plan import StepPlan
from lorry_admin import EngineReplicas, add_admin_services
from tests.unit.registry.conftest import CHEAP, PEPPERS


class Engines(EngineReplicas):
    """Those that are put in."""

    def __init__(self) -> None:
        super().__init__([])

    def put(self, *engines: EngineClient) -> None:
        self._engines = engines


@dataclass
class Operators:
    admin: AdminClient
    engines: Engines
    tenants: dict[str, TenantId] = field(default_factory=dict)
    """Ids by name."""

    async def tenant(self, name: str) -> TenantId:
        if name not in self.tenants:
            self.tenants[name] = TenantId((await self.admin.create_tenant(name)).uid)
        return self.tenants[name]


@asynccontextmanager
async def operators(url: str, folder: Path, desk: Desk | None = None) -> AsyncIterator[Operators]:
    registry = Registry(url, PEPPERS, CHEAP)
    key = await _first_admin(registry.database, PEPPERS)
    assert key is not None
    source = registry.snapshots()
    await source.start()
    engines = Engines()
    store: Any = DirectoryStore(folder / "objects")
    versions = registry.versions(store, _unused, folder / "spool")
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    add_admin_services(server, registry, source, versions, registry.lifecycle(store, engines), engines, desk)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with AdminClient(f"127.0.0.1:{port}", key) as admin:
            yield Operators(admin, engines)
    finally:
        await server.stop(None)
        await registry.close()


@asynccontextmanager
async def over_the_wire(engine: EngineClient, folder: Path) -> AsyncIterator[GrpcEngineClient]:
    server = await serve_engine(engine, f"unix:{folder}/e.sock")
    client = GrpcEngineClient(server.address)
    try:
        yield client
    finally:
        await client.close()
        await server.stop()


class Stepper:
    """Lets the scheduler plan only when it is told to; questions are answered meanwhile."""

    def __init__(self, parts: EngineParts, engine: EngineClient) -> None:
        self._core, self._engine, self._plan = parts.core, engine, parts.scheduler.plan
        self._left = 0
        parts.scheduler.plan = self._make  # type: ignore[method-assign]  # to look at each plan

    def _make(self) -> StepPlan | None:
        if not self._left:
            return None
        self._left -= 1
        return self._plan()

    async def step(self, times: int = 1) -> None:
        for _ in range(times):
            self._left = 1
            while self._left:
                self._core.wake()
                await self._engine.state()
        await self._engine.state()


class Asked:
    """Requests that run until the block ends."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Asked:
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def send(self, request: EngineRequest) -> None:
        """Returns when the engine knows of it."""
        before = await self._known()
        self._tasks.append(asyncio.create_task(self._read(request)))
        async with asyncio.timeout(20):
            while await self._known() < before + request.n:
                await asyncio.sleep(0)

    async def _known(self) -> int:
        return int((await self._engine.state())["scheduler"]["live"])

    async def _read(self, request: EngineRequest) -> None:
        try:
            async for _ in self._engine.generate(request):
                continue
        except LorryError:
            return


async def _unused(*args: Any) -> Any:
    raise AssertionError("nothing is uploaded here")


__all__ = ["Asked", "Engines", "Operators", "Stepper", "operators", "over_the_wire"]

"""Two gateways on one registry, each with an engine that only it reaches: where a version is, asked of either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from lorry.adapters.store import DirectoryStore
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.cli import upkeep
from lorry.config import GatewayConfig
from lorry.engine.fake import FakeEngine
from lorry.gateway import EngineRoutes, MemoryUsage, build_server
from lorry.gateway.server import ExtraService
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, BaseDigest
from lorry.registry import Registry
from lorry.registry.db.tables import ReplicaState
from lorry.registry.fleet import repository
from lorry_admin import ADMIN_SERVICES, EngineReplicas, add_admin_services
from tests.integration.admin.conftest import BASE_SHA256, LIMITS, Client, Gate, Platform, SwitchedStore
from tests.integration.admin.live_world import over_the_wire
from tests.integration.admin.test_lifecycle import JSON, owner, register
from tests.support.waiting import end
from tests.unit.adapters import craft
from tests.unit.engine_contract.fakes import fake_engine
from tests.unit.registry.conftest import CHEAP

REPORTS_S = 0.02
COPIES_S = 0.05


@dataclass
class Gateway:
    channel: grpc.aio.Channel
    engine: FakeEngine

    def client(self, key: str) -> Client:
        return Client(self.channel, key)


@asynccontextmanager
async def gateway(platform: Platform, url: str, folder: Path, name: str) -> AsyncIterator[Gateway]:
    """Beside the platform's own server, on its registry, with connections and an engine of its own; it reports both, as
    ``lorry serve`` does."""
    folder.mkdir()
    registry = Registry(url, platform.registry.peppers, CHEAP)
    source = registry.snapshots()
    await source.start()
    store: Any = SwitchedStore(DirectoryStore(platform.store_root))
    engine = fake_engine(BaseDigest(BASE_SHA256), name)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(registry.close)
        client = await stack.enter_async_context(over_the_wire(engine, folder))
        engines = EngineReplicas([client])
        versions = registry.versions(store, Gate().validate, folder / "spool", LIMITS)
        lifecycle = registry.lifecycle(store, engines)

        def add(server: Any) -> None:
            add_admin_services(server, registry, source, versions, lifecycle, engines)

        extra = [ExtraService(ADMIN_SERVICES[0], add)]
        config = GatewayConfig(port=0)
        server = build_server(config, source, EngineRoutes([client]), MemoryUsage(), kv_salt=bytes(32), extra=extra)
        await server.start()
        stack.push_async_callback(server.stop, grace=0)
        tasks = [
            asyncio.create_task(source.run()),
            asyncio.create_task(upkeep.reporting(registry.fleet, server, source, [client])),
        ]
        stack.push_async_callback(end, *tasks)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.address))
        yield Gateway(channel, engine)


@pytest.fixture
async def both(
    with_base: Platform, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Gateway, Gateway]]:
    monkeypatch.setattr(upkeep, "REPORT_S", REPORTS_S)
    monkeypatch.setattr(upkeep, "COPIES_S", COPIES_S)
    async with AsyncExitStack() as stack:
        a, b = [
            await stack.enter_async_context(gateway(with_base, url, tmp_path / name, f"engine-{name}")) for name in "ab"
        ]
        yield a, b


Places = dict[str, tuple[bool, bool, bool]]
"""Of each replica whether it is on the device, and in host memory, and whether another gateway saw it."""


async def placed(client: Client, version: str) -> Places:
    found = (await client.call("GetResidency", pb.GetResidencyRequest(name=version))).replicas
    told = {one.replica: (one.device, one.host, one.HasField("seen_time")) for one in found}
    assert len(told) == len(found), "an engine is told once"
    return told


async def listed(client: Client, version: str) -> Places:
    request = pb.ListResidencyRequest(parent="/".join(version.split("/")[:2]))
    found = (await client.call("ListResidency", request)).residencies
    rows = [row for one in found if one.name == version for row in one.replicas]
    told = {row.replica: (row.device, row.host, row.HasField("seen_time")) for row in rows}
    assert len(told) == len(rows), "an engine is told once"
    return told


async def becomes(ask: Callable[[], Awaitable[Places]], wanted: Places) -> None:
    found: Places = {}
    try:
        async with asyncio.timeout(20):
            while (found := await ask()) != wanted:
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{found}, never {wanted}") from None


async def test_either_gateway_tells_of_both_engines(
    with_base: Platform, both: tuple[Gateway, Gateway], tmp_path: Path
) -> None:
    anna = await owner(with_base, JSON)
    version = await register(anna, JSON, craft.write_adapter(tmp_path / "files"))
    a, b = (one.client(anna.key) for one in both)
    away, near, far = (False, False, False), (False, True, False), (False, True, True)
    assert await placed(a, version.name) == {"engine-a": away}
    await b.call("PreloadAdapterVersion", pb.PreloadAdapterVersionRequest(name=version.name))
    await becomes(partial(placed, a, version.name), {"engine-a": away, "engine-b": far})
    await becomes(partial(listed, a, version.name), {"engine-b": far})
    assert await placed(b, version.name) == {"engine-b": near}
    answer = await a.call("PreloadAdapterVersion", pb.PreloadAdapterVersionRequest(name=version.name))
    assert [one.replica for one in answer.replicas] == ["engine-a"], "what it did, where it did it"
    for ask in (placed, listed):
        await becomes(partial(ask, a, version.name), {"engine-a": near, "engine-b": far})
        await becomes(partial(ask, b, version.name), {"engine-b": near, "engine-a": far})
    adapter = await anna.call("GetAdapter", pb.GetAdapterRequest(name=JSON))
    await both[1].engine.forget(AdapterKey(AdapterDigest(version.sha256), AdapterScope(adapter.uid)))
    await becomes(partial(placed, a, version.name), {"engine-a": near})
    await becomes(partial(listed, a, version.name), {"engine-a": near})


async def test_copies_are_reported_now_and_then(
    with_base: Platform, both: tuple[Gateway, Gateway], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More seldom than the engine itself."""
    anna = await owner(with_base, JSON)
    version = await register(anna, JSON, craft.write_adapter(tmp_path / "files"))
    a, b = (one.client(anna.key) for one in both)
    monkeypatch.setattr(upkeep, "COPIES_S", 3600.0)
    before = await seen(with_base)
    while (now := await seen(with_base)).seen_at < before.seen_at + timedelta(seconds=5 * REPORTS_S):
        await asyncio.sleep(REPORTS_S)
    await b.call("PreloadAdapterVersion", pb.PreloadAdapterVersionRequest(name=version.name))
    while (last := await seen(with_base)).seen_at < now.seen_at + timedelta(seconds=5 * REPORTS_S):
        await asyncio.sleep(REPORTS_S)
    assert now.copies_seen_at == last.copies_seen_at
    assert await listed(a, version.name) == {}
    monkeypatch.setattr(upkeep, "COPIES_S", COPIES_S)
    await becomes(partial(listed, a, version.name), {"engine-b": (False, True, True)})


async def seen(platform: Platform) -> ReplicaState:
    async with platform.registry.database.read() as session:
        found = await repository.find(session, "engine-b")
    assert found is not None
    return found


async def test_an_engine_that_died_is_told_by_no_gateway(
    with_base: Platform, both: tuple[Gateway, Gateway], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = await owner(with_base, JSON)
    version = await register(anna, JSON, craft.write_adapter(tmp_path / "files"))
    a, b = (one.client(anna.key) for one in both)
    await b.call("PreloadAdapterVersion", pb.PreloadAdapterVersionRequest(name=version.name))
    here = {"engine-a": (False, False, False)}
    await becomes(partial(placed, a, version.name), {**here, "engine-b": (False, True, True)})
    monkeypatch.setattr(upkeep, "COPIES_S", 3600.0)
    for has in (True, False):
        both[1].engine.die()
        await becomes(partial(placed, a, version.name), here)
        if not has:
            both[1].engine._hosted.clear()
        both[1].engine.revive()
        while (await seen(with_base)).state != "SERVING":
            await asyncio.sleep(REPORTS_S)
        back = {"engine-b": (False, True, True)} if has else {}
        assert await placed(a, version.name) == here | back, "what it has since it is back"

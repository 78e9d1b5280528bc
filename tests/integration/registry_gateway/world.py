"""A gateway on a real port and database, before a fake engine; tenants with a key, an adapter and a grant each."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from lorry.adapters.manifest import AdapterFile, files_digest
from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import generate_pb2_grpc
from lorry.config import GatewayConfig
from lorry.engine.fake import FakeEngine, Fault, FaultKind
from lorry.errors import LorryError
from lorry.gateway import EngineRoutes, GatewayServer, MemoryUsage, UsageSink, build_server
from lorry.registry import Caller, Registry, SnapshotSource, VersionState
from lorry.registry.adapters import repository as adapters
from lorry.registry.bases import repository as bases
from lorry.registry.bootstrap import _first_admin
from lorry.registry.changes import Change, Kind, record
from lorry.registry.source import POLL_TIMEOUT_S
from tests.support.waiting import end, until
from tests.unit.engine_contract.fakes import BASE_DIGEST, fake_engine, tokenizer
from tests.unit.registry.conftest import CHEAP, PEPPERS, TINY_CONFIG


@dataclass(frozen=True, slots=True)
class Customer:
    """A tenant with one key, and an adapter of the platform's that it may use."""

    name: str
    key: str
    key_id: str
    model: str
    grant_id: str


@dataclass
class World:
    registry: Registry
    """The administrators': connections of its own."""
    admin: Caller
    source: SnapshotSource
    gateway: GatewayServer
    engine: FakeEngine
    stub: Any
    ahead: float = 0.0
    """Seconds by which the gateway's clock is ahead."""

    async def customer(self, name: str) -> Customer:
        await self.registry.tenants.create(self.admin, name)
        row, key = await self.registry.keys.create(self.admin, name, "member", "member")
        await self._adapter(name)
        model = f"tenants/platform/adapters/{name}"
        grant = await self.registry.grants.create(self.admin, name, model)
        return Customer(name, key, row.id, model, grant.id)

    async def _adapter(self, name: str) -> None:
        """With two versions. By repository, as registration needs a store."""
        tenant = self.admin.tenant
        async with self.registry.database.write() as session:
            base = await bases.find(session, "tiny")
            assert base is not None
            adapter = await adapters.insert_adapter(session, tenant, name, "")
            for text in ("one", "two"):
                files = (AdapterFile("w", 1, hashlib.sha256(f"{name} {text}".encode()).hexdigest()),)
                await adapters.insert_version(
                    session,
                    adapter.id,
                    await adapters.next_number(session, tenant, adapter.id),
                    base_model_id=base.id,
                    sha256=files_digest(files),
                    prefix="p",
                    files=files,
                    rank=8,
                    report={},
                    state=VersionState.READY,
                    state_reason="",
                    created_by="test",
                )
            await record(session, Change(Kind.ADAPTER, adapter.id))

    def stream(self, customer: Customer, **fields: Any) -> Any:
        """A GenerateStream call of 8 tokens, or fewer where the engine hangs."""
        message = pb.GenerateRequest(model=customer.model, prompt="the lorry", **fields)
        message.sampling.temperature = 0
        message.stopping.max_tokens = 8
        return self.stub.GenerateStream(message, metadata=self.metadata(customer))

    async def begun(self, customer: Customer) -> Any:
        """A call that has answered."""
        call = self.stream(customer)
        async with asyncio.timeout(30):
            assert (await call.read()).WhichOneof("event") == "start"
        return call

    async def look(self, customer: Customer, model: str = "") -> LorryError | None:
        """What a new call is refused with."""
        try:
            request = pb.GetModelRequest(name=model or customer.model)
            await self.stub.GetModel(request, metadata=self.metadata(customer), timeout=30)
        except grpc.RpcError as error:
            return error_from_rpc(error)
        return None

    def metadata(self, customer: Customer) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {customer.key}"),)

    async def caught_up(self) -> None:
        """The gateway knows what the registry knows now."""
        epoch = (await self.registry.snapshots().start()).epoch
        await until(lambda: self.source.current().epoch >= epoch)


async def ended(call: Any, seconds: float = 30.0) -> LorryError | None:
    """Reads on, and answers what ended the call."""
    try:
        async with asyncio.timeout(seconds):
            while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
                assert message.WhichOneof("event") in ("delta", "end")
    except grpc.RpcError as error:
        return error_from_rpc(error)
    return None


def hang(engine: FakeEngine) -> None:
    """Requests stop after their first token: nothing but the registry can end them."""
    engine.fault = lambda request: Fault(FaultKind.HANG, 2)


@asynccontextmanager
async def world(
    url: str,
    poll_seconds: float | None = None,
    usage: UsageSink | None = None,
    poll_timeout: float = POLL_TIMEOUT_S,
    **config: Any,
) -> AsyncIterator[World]:
    """``poll_seconds`` None is the database's own. The gateway's registry is another one than the administrators'."""
    admins, gateways = Registry(url, PEPPERS, CHEAP), Registry(url, PEPPERS)
    key = await _first_admin(admins.database, PEPPERS)
    assert key is not None
    async with admins.database.write() as session:
        base = await bases.insert(session, "tiny", BASE_DIGEST, tokenizer().sha256, 512, TINY_CONFIG)
        await record(session, Change(Kind.BASE_MODEL, base.id))
    source = gateways.snapshots()
    if poll_seconds is not None:
        source = SnapshotSource(gateways.database, PEPPERS, poll_seconds, poll_timeout=poll_timeout)
    admin = (await source.start()).authenticate(key, time.time())
    engine = fake_engine()
    gateway = build_server(
        GatewayConfig(**{"port": 0, **config}),
        source,
        EngineRoutes([engine]),
        usage or MemoryUsage(),
        kv_salt=bytes(32),
        now=lambda: time.time() + made.ahead,
        outcomes=gateways.outcomes,
    )
    channel = grpc.aio.insecure_channel(gateway.address)
    made = World(admins, admin, source, gateway, engine, generate_pb2_grpc.GenerateServiceStub(channel))
    await gateway.start()
    polling = asyncio.create_task(source.run())
    try:
        yield made
    finally:
        await channel.close(None)
        await gateway.stop(grace=0)
        await end(polling)
        await gateways.close()
        await admins.close()

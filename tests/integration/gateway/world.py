"""A gateway on a real port before a fake engine, with two tenants in a registry snapshot held in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from lorry.adapters.manifest import AdapterRef
from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import generate_pb2_grpc
from lorry.client import AsyncClient
from lorry.config import GatewayConfig
from lorry.engine.contract import EngineClient
from lorry.engine.fake import FakeEngine
from lorry.engine.transport_grpc import GrpcEngineClient, serve_engine
from lorry.errors import LorryError
from lorry.gateway import EngineRoutes, GatewayServer, MemoryUsage, UsageSink, build_server
from lorry.gateway.texts import VersionTexts
from lorry.ids import BaseDigest, TenantId
from lorry.layers.rope import RopeSpec
from lorry.layers.spec import DecoderSpec
from lorry.registry.authz import Role
from lorry.registry.entries import (
    AdapterEntry,
    AliasEntry,
    BaseModelEntry,
    GrantEntry,
    KeyEntry,
    TenantEntry,
    VersionEntry,
    VersionState,
)
from lorry.registry.keys import Peppers
from lorry.registry.snapshot import Snapshot, Tables
from tests.unit.engine_contract.fakes import BASE_DIGEST, CONTEXT_TOKENS, adapter_ref, fake_engine, tokenizer

PEPPERS = Peppers((b"p" * 32,))
KV_SALT = bytes(range(32))
BASE = "models/smol"
PIRATE = "tenants/acme/adapters/pirate"
CAPS = "tenants/acme/adapters/caps"
OTHERS = "tenants/beta/adapters/secret"
SPEC = DecoderSpec("llama", 1, 8, 8, 1, 1, 8, 400, CONTEXT_TOKENS, 1e-5, RopeSpec("default", 1e4), True, None, (0,))


class Source:
    """The newest snapshot, changed by hand."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.seconds = 0.0
        """Since the registry answered last."""

    def current(self) -> Snapshot:
        return self.snapshot

    def stood_still(self) -> bool:
        return False

    def age(self) -> float:
        return self.seconds

    def change(self, **rows: Any) -> None:
        self.snapshot = self.snapshot.replace(self.snapshot.epoch + 1, **rows)


@dataclass
class World:
    engine: FakeEngine
    source: Source
    gateway: GatewayServer
    usage: UsageSink
    keys: dict[str, str]
    channel: grpc.aio.Channel
    stub: Any
    _clients: list[AsyncClient] = field(default_factory=list)

    @property
    def tables(self) -> Tables:
        return self.source.snapshot.tables

    def metadata(self, who: str = "acme") -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.keys.get(who, who)}"),)

    def client(self, who: str = "acme") -> AsyncClient:
        client = AsyncClient(self.gateway.address, self.keys.get(who, who))
        self._clients.append(client)
        return client

    def call(self, request: pb.GenerateRequest, who: str = "acme", **options: Any) -> Any:
        """A GenerateStream call, raw."""
        return self.stub.GenerateStream(request, metadata=self.metadata(who), **options)

    def revoke_grant(self, adapter: str = PIRATE, tenant: str = "t-acme") -> None:
        self.source.change(grants=[GrantEntry(TenantId(tenant), self.adapter(adapter).id, time.time())])

    def adapter(self, resource: str) -> AdapterEntry:
        return next(entry for entry in self.tables.adapters.values() if entry.resource == resource)

    def change_version(self, resource: str, number: int, **changes: Any) -> None:
        entry = self.adapter(resource)
        version = replace(entry.versions[number], **changes)
        self.source.change(adapters=[replace(entry, versions={**entry.versions, number: version})])


def request(model: str = PIRATE, **fields: Any) -> pb.GenerateRequest:
    """Greedy, 8 tokens, prompt "the lorry", unless said otherwise."""
    made = pb.GenerateRequest(model=model, sampling=pb.SamplingParams(temperature=0))
    if not {"prompt", "chat", "token_ids"} & set(fields):
        made.prompt = "the lorry"
    if "stopping" not in fields:
        made.stopping.max_tokens = fields.pop("max_tokens", 8)
    made.MergeFrom(pb.GenerateRequest(**fields))
    return made


async def read(call: Any) -> tuple[list[pb.GenerateStreamResponse], LorryError | None]:
    """Everything that a stream sent, and the error that ended it."""
    messages: list[pb.GenerateStreamResponse] = []
    try:
        async with asyncio.timeout(20):
            async for message in call:
                messages.append(message)
    except grpc.RpcError as error:
        return messages, error_from_rpc(error)
    return messages, None


async def until(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds; fails after 20 s."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


def ref(resource: str, number: int) -> AdapterRef:
    return adapter_ref(f"{resource}#{number}")


def _adapter(entry_id: str, tenant: str, name: str, numbers: dict[int, VersionState], **aliases: int) -> AdapterEntry:
    resource = f"tenants/{tenant}/adapters/{name}"
    versions = {n: VersionEntry(n, state, "b-smol", ref(resource, n)) for n, state in numbers.items()}
    pointed = {alias: AliasEntry(alias, number) for alias, number in aliases.items()}
    return AdapterEntry(entry_id, TenantId(f"t-{tenant}"), tenant, name, versions, pointed)


def make_snapshot() -> tuple[Snapshot, dict[str, str]]:
    texts: dict[str, str] = {}
    keys: dict[str, KeyEntry] = {}
    for who, tenant, expires, revoked in (
        ("acme", "acme", None, None),
        ("beta", "beta", None, None),
        ("idle", "idle", None, None),
        ("expired", "acme", 1.0, None),
        ("revoked", "acme", None, 1.0),
        ("suspended", "gone", None, None),
    ):
        new = PEPPERS.new_key()
        texts[who] = new.text
        keys[new.key_id] = KeyEntry(
            new.key_id,
            TenantId(f"t-{tenant}"),
            f"{who}-principal",
            Role.MEMBER,
            new.mac,
            new.pepper_id,
            expires,
            revoked,
        )
    ready, quarantined = VersionState.READY, VersionState.QUARANTINED
    adapters = [
        _adapter("a-pirate", "acme", "pirate", {1: ready, 2: ready}, stable=1),
        _adapter("a-caps", "acme", "caps", {1: ready}),
        _adapter("a-bad", "acme", "bad", {1: quarantined}),
        _adapter("a-revoked", "acme", "revoked", {1: ready}),
        _adapter("a-unready", "acme", "unready", {1: VersionState.REJECTED}),
        _adapter("a-secret", "beta", "secret", {1: ready}),
    ]
    base = BaseModelEntry("b-smol", "smol", BASE_DIGEST, tokenizer().sha256, 512, {}, SPEC)
    lost = replace(base, id="b-lost", name="lost", base_digest=BaseDigest("d" * 64))
    acme, beta = TenantId("t-acme"), TenantId("t-beta")
    granted = ["a-pirate", "a-caps", "a-bad", "a-unready", "b-smol", "b-lost"]
    grants: dict[str, dict[str, GrantEntry]] = {
        acme: {name: GrantEntry(acme, name, None) for name in granted}
        | {"a-revoked": GrantEntry(acme, "a-revoked", time.time())},
        beta: {name: GrantEntry(beta, name, None) for name in ("a-secret", "b-smol")},
    }
    tenants = [TenantEntry(TenantId(f"t-{name}"), name, name == "gone") for name in ("acme", "beta", "idle", "gone")]
    tables = Tables(
        {tenant.id: tenant for tenant in tenants},
        keys,
        {base.id: base, lost.id: lost},
        {adapter.id: adapter for adapter in adapters},
        grants,
    )
    return Snapshot.build(7, tables, PEPPERS), texts


@asynccontextmanager
async def world(
    socket_dir: Path | None = None,
    usage: UsageSink | None = None,
    stall_seconds: float = 30.0,
    texts: VersionTexts | None = None,
    **config: Any,
) -> AsyncIterator[World]:
    """``socket_dir``: the engine is reached through its gRPC transport on a socket there."""
    engine = fake_engine()
    snapshot, keys = make_snapshot()
    source, sink = Source(snapshot), usage or MemoryUsage()
    server, client = None, None
    reached: EngineClient = engine
    if socket_dir is not None:
        server = await serve_engine(engine, f"unix:{socket_dir}/engine.sock")
        reached = client = GrpcEngineClient(server.address)
    config = {"port": 0, "snapshot_poll_seconds": 0.02, **config}
    gateway = build_server(
        GatewayConfig(**config),
        source,
        EngineRoutes([reached]),
        sink,
        kv_salt=KV_SALT,
        texts=texts,
        stall_seconds=stall_seconds,
    )
    await gateway.start()
    channel = grpc.aio.insecure_channel(gateway.address)
    made = World(engine, source, gateway, sink, keys, channel, generate_pb2_grpc.GenerateServiceStub(channel))
    try:
        yield made
    finally:
        for one in made._clients:
            await one.close()
        await channel.close(None)
        await gateway.stop(grace=0)
        if client is not None and server is not None:
            await client.close()
            await server.stop()

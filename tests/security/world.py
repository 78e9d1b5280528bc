"""All four services and the HTTP port in one process, over SQLite, a folder of objects and a fake engine; every access
to the store and to buckets is written down."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx2 as httpx
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from sqlalchemy import select

from lorry.adapters.store import DirectoryStore
from lorry.api.status import DETAILS_KEY, error_from_rpc
from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import fleet_pb2, generate_pb2
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from lorry.api.v1 import user_admin_pb2 as user_pb
from lorry.config import GatewayConfig
from lorry.engine.fake import FakeEngine
from lorry.gateway import EngineRoutes, GatewayServer, MemoryUsage, build_server
from lorry.gateway.desk import GatewayDesk
from lorry.gateway.server import ExtraService
from lorry.registry import Registry, SnapshotSource, bootstrap
from lorry.registry.db.base import Model
from lorry_admin import ADMIN_SERVICES, EngineReplicas, add_admin_services
from tests.integration.admin.conftest import Client as AdminClient
from tests.integration.admin.conftest import Gate, SwitchedStore
from tests.support.waiting import end
from tests.unit.adapters import craft
from tests.unit.engine_contract.fakes import BASE_DIGEST, fake_engine, tokenizer
from tests.unit.registry.conftest import CHEAP

SERVICES = [
    service
    for file in (generate_pb2, adapter_pb, tenant_pb, fleet_pb2, user_pb)
    for service in file.DESCRIPTOR.services_by_name.values()
]
METHODS: dict[str, MethodDescriptor] = {
    f"{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods
}
"""Every RPC there is, by its path: what the descriptors say, so that a new one is here by itself."""
CHUNK_BYTES = 1 << 20
NOBODYS_KEY = f"lorry_{'0' * 16}_{'0' * 64}"
"""Well formed, and nobody's."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended, to the last byte. ``code`` OK: with ``answers``."""

    code: str
    message: str = ""
    reason: str = ""
    details: bytes = b""
    answers: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Names:
    """One of each kind of resource, all of one tenant."""

    tenant: str
    adapter: str
    gone: str
    """A deleted adapter."""
    upload: str
    key: str
    grant: str
    quota: str
    user: str
    session: str
    base: str = "models/tiny"

    @property
    def version(self) -> str:
        return f"{self.adapter}/versions/1"

    @property
    def alias(self) -> str:
        return f"{self.adapter}@prod"


def of_nobody(tenant: str, adapter: str = "none") -> Names:
    """Of the same grammar, and nowhere."""
    name = f"{tenant}/adapters/{adapter}"
    ids = f"{tenant}/grants/gr_{'0' * 32}", f"{tenant}/quotas/qu_{'0' * 32}"
    who = f"{tenant}/users/none", f"{tenant}/sessions/ws_{'0' * 32}"
    return Names(tenant, name, f"{tenant}/adapters/none-too", f"{name}/uploads/{'0' * 32}", _key(tenant), *ids, *who)


def _key(tenant: str) -> str:
    return f"{tenant}/apiKeys/{'0' * 16}"


class Importer:
    """In place of a bucket's: writes down what it was asked for, and puts the files of an adapter there."""

    def __init__(self, files: Path) -> None:
        self.asked: list[tuple[str, str]] = []
        self._files = files

    async def fetch(self, bucket: str, prefix: str, folder: Path) -> None:
        self.asked.append((bucket, prefix))
        for file in self._files.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())


class RecordingStore(SwitchedStore):
    def __init__(self, store: DirectoryStore) -> None:
        super().__init__(store)
        self.asked: list[str] = []

    async def put_file(self, key: str, path: Path) -> None:
        self.asked.append(f"put {key}")
        await super().put_file(key, path)

    async def exists(self, key: str) -> bool:
        self.asked.append(f"exists {key}")
        return await super().exists(key)

    async def delete(self, key: str) -> None:
        self.asked.append(f"delete {key}")
        await super().delete(key)


@dataclass
class World:
    folder: Path
    registry: Registry
    source: SnapshotSource
    gateway: GatewayServer
    engine: FakeEngine
    store: RecordingStore
    importer: Importer
    gate: Gate
    usage: MemoryUsage
    channel: grpc.aio.Channel
    admin_key: str
    files: Path
    """An adapter that is accepted."""
    web: httpx.AsyncClient
    keys: dict[str, str] = field(default_factory=dict)
    """By tenant and role: ``anna owner``."""
    key_names: dict[str, str] = field(default_factory=dict)

    async def call(self, path: str, request: Any, key: str | None, metadata: Iterable[tuple[str, str]] = ()) -> Outcome:
        """``key`` None: without any."""
        method = METHODS[path]
        kind = message_factory.GetMessageClass(method.output_type)
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        stub: Any = make(f"/{path}", lambda message: message.SerializeToString(), kind.FromString)
        sent = [*metadata, *([] if key is None else [("authorization", f"Bearer {key}")])]
        try:
            call = stub(request, metadata=sent, timeout=20)
            answers = [one async for one in call] if method.server_streaming else [await call]
        except grpc.aio.AioRpcError as error:
            trailers: list[Any] = list(error.trailing_metadata() or ())
            details: bytes = dict(trailers).get(DETAILS_KEY, b"")
            return Outcome(error.code().name, error.details() or "", error_from_rpc(error).reason, details)
        return Outcome("OK", answers=tuple(answers))

    def client(self, who: str) -> AdminClient:
        return AdminClient(self.channel, self.keys[who])

    async def tenant(self, name: str, *roles: str) -> None:
        admin = self.client("admin")
        await admin.call("CreateTenant", tenant_pb.CreateTenantRequest(tenant_id=name))
        for role in roles:
            number = tenant_pb.Role.Value(f"ROLE_{role.upper()}")
            request = tenant_pb.CreateApiKeyRequest(parent=f"tenants/{name}", principal=role, role=number)
            made = await admin.call("CreateApiKey", request)
            self.keys[f"{name} {role}"] = made.text
            self.key_names[f"{name} {role}"] = made.api_key.name

    async def settle(self) -> None:
        """The gateway knows what the registry knows."""
        await self.source.refresh()

    async def furnish(self, name: str) -> Names:
        """One of each kind of resource for a tenant that has an owner's key."""
        owner, admin = self.client(f"{name} owner"), self.client("admin")
        tenant = f"tenants/{name}"
        adapter = f"{tenant}/adapters/json"
        for one in ("json", "gone"):
            await owner.call("CreateAdapter", adapter_pb.CreateAdapterRequest(parent=tenant, adapter_id=one))
        await owner.call("DeleteAdapter", adapter_pb.DeleteAdapterRequest(name=f"{tenant}/adapters/gone"))
        for _ in range(2):
            upload = await owner.upload(adapter, self.files, CHUNK_BYTES)
            request = adapter_pb.CreateAdapterVersionRequest(parent=adapter, upload=upload, base="models/tiny")
            await owner.call("CreateAdapterVersion", request)
        await owner.call("SetAlias", adapter_pb.SetAliasRequest(parent=adapter, alias_id="prod", version=1))
        canary = adapter_pb.SetCanaryRequest(name=f"{adapter}@prod", version=2, permille=1)
        await owner.call("SetCanary", canary)
        await owner.call("SetPin", tenant_pb.SetPinRequest(parent=tenant, version=f"{adapter}/versions/1"))
        limits = tenant_pb.QuotaLimits(concurrency=1000)
        quota = await admin.call("SetQuota", tenant_pb.SetQuotaRequest(parent=tenant, limits=limits))
        grant = await admin.call("CreateGrant", tenant_pb.CreateGrantRequest(parent=tenant, resource="models/tiny"))
        spare = tenant_pb.CreateApiKeyRequest(parent=tenant, principal="spare", role=tenant_pb.ROLE_MEMBER)
        key = await owner.call("CreateApiKey", spare)
        upload = await owner.upload(adapter, self.files, CHUNK_BYTES)
        member = user_pb.CreateUserRequest(parent=tenant, user_id="ann", role=tenant_pb.ROLE_MEMBER)
        made = await owner.call("CreateUser", member)
        _, session = await self.registry.accounts.log_in(
            f"ann@{name}", made.password, agent="a browser", address="127.0.0.1", now=time.time()
        )
        await self.settle()
        ids = key.api_key.name, grant.name, quota.name, made.user.name, f"{tenant}/sessions/{session.id}"
        return Names(tenant, adapter, f"{tenant}/adapters/gone", upload, *ids)

    async def dump(self) -> dict[str, Any]:
        """All that could have changed: every row, every file, what engines and stores were asked."""
        found: dict[str, Any] = {}
        async with self.registry.database.read() as session:
            for table in Model.metadata.sorted_tables:
                rows = await session.execute(select(table))
                found[table.name] = sorted(repr(tuple(row)) for row in rows)
        places = [self.folder / "objects", self.folder / "spool"]
        found["files"] = sorted((str(p), p.stat().st_size) for place in places for p in place.rglob("*") if p.is_file())
        found["asked"] = [*self.store.asked, *self.importer.asked, len(self.engine.seen), len(self.usage.rows)]
        return found


@asynccontextmanager
async def world(folder: Path, polls: bool = True, **config: Any) -> AsyncIterator[World]:
    """``polls`` False: the registry is asked by calls alone, so that a test can count what they ask."""
    start = await bootstrap(folder / "home", f"sqlite:///{folder / 'registry.db'}", {})
    assert start.admin_key is not None
    registry = Registry(start.url, start.peppers, CHEAP)
    source = registry.snapshots()
    await source.start()
    files = craft.write_adapter(folder / "files")
    store, importer, gate = RecordingStore(DirectoryStore(folder / "objects")), Importer(files), Gate()
    versions = registry.versions(store, gate.validate, folder / "spool", importer=importer)
    engine, usage = fake_engine(), MemoryUsage()
    engines, desk = EngineReplicas([engine]), GatewayDesk()
    lifecycle = registry.lifecycle(store, engines)

    def add(server: Any) -> None:
        add_admin_services(server, registry, source, versions, lifecycle, engines, desk)

    gateway = build_server(
        GatewayConfig(**{"port": 0, "http_port": 0, **config}),
        source,
        EngineRoutes([engine]),
        usage,
        kv_salt=start.secrets.kv_salt,
        extra=[ExtraService(name, add if at == 0 else lambda server: None) for at, name in enumerate(ADMIN_SERVICES)],
        desk=desk,
    )
    await gateway.start()
    polling = asyncio.create_task(source.run() if polls else asyncio.Event().wait())
    channel = grpc.aio.insecure_channel(gateway.address)
    key = start.admin_key
    assert gateway.http is not None
    web = httpx.AsyncClient(base_url=gateway.http.address, timeout=20)
    made = World(folder, registry, source, gateway, engine, store, importer, gate, usage, channel, key, files, web)
    made.keys["admin"] = key
    base = tenant_pb.CreateBaseModelRequest(
        base_model_id="tiny",
        base_sha256=BASE_DIGEST,
        tokenizer_sha256=tokenizer().sha256,
        config_json=json.dumps(craft.BASE_CONFIG),
    )
    await made.client("admin").call("CreateBaseModel", base)
    try:
        yield made
    finally:
        await web.aclose()
        await channel.close(None)
        await gateway.stop(grace=0)
        await end(polling)
        await registry.close()

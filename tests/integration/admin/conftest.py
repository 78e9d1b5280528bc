"""The admin services on a real server and either database, with a directory store and the real validator."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from lorry.adapters.report import Check, ValidationReport
from lorry.adapters.store import DirectoryStore, ObjectStore
from lorry.adapters.validate import Limits, validate_directory
from lorry.api.status import ErrorInterceptor, error_from_rpc
from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from lorry.api.v1.adapter_admin_pb2_grpc import AdapterAdminServiceStub
from lorry.api.v1.fleet_pb2_grpc import FleetServiceStub
from lorry.api.v1.tenant_admin_pb2_grpc import TenantAdminServiceStub
from lorry.api.v1.user_admin_pb2_grpc import UserAdminServiceStub
from lorry.engine.fake import FakeEngine
from lorry.errors import AlreadyExists, LorryError
from lorry.ids import BaseDigest
from lorry.layers.spec import DecoderSpec
from lorry.registry import BaseFacts, Registry, SnapshotSource, UploadLimits
from lorry.registry.adapters.lifecycle import LifecycleService
from lorry.registry.adapters.versions import VersionService
from lorry.registry.bootstrap import _first_admin
from lorry_admin import EngineReplicas, add_admin_services
from tests.unit.adapters.craft import BASE_CONFIG
from tests.unit.engine_contract.fakes import fake_engine
from tests.unit.registry.conftest import (
    CHEAP,
    PEPPERS,
    postgres_template,
    postgres_url,
    sqlite_template,
    sqlite_url,
    url,
)

__all__ = ["postgres_template", "postgres_url", "sqlite_template", "sqlite_url", "url"]

LIMITS = UploadLimits(max_files=4, max_file_bytes=64 << 10, max_upload_bytes=96 << 10, max_chunk_bytes=1024)
BASE_SHA256, TOKENIZER_SHA256 = "1" * 64, "2" * 64


class Client:
    """One API key's view of the services. Errors come back as LorryError."""

    def __init__(self, channel: grpc.aio.Channel, key: str) -> None:
        self.key = key
        self._stubs: list[Any] = [
            AdapterAdminServiceStub(channel),
            TenantAdminServiceStub(channel),
            UserAdminServiceStub(channel),
            FleetServiceStub(channel),
        ]

    async def call(self, method: str, request: Any) -> Any:
        stub = next(stub for stub in self._stubs if hasattr(stub, method))
        metadata = (("authorization", f"Bearer {self.key}"),) if self.key else ()
        try:
            call = getattr(stub, method)(request, metadata=metadata, timeout=20)
            return [message async for message in call] if hasattr(call, "__aiter__") else await call
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    def watch(self, name: str) -> Any:
        """The raw call."""
        request = adapter_pb.WatchAdapterVersionRequest(name=name)
        return self._stubs[0].WatchAdapterVersion(request, metadata=(("authorization", f"Bearer {self.key}"),))

    async def upload(self, adapter: str, folder: Path, chunk: int = 1000) -> str:
        """Every file of the folder; answers the upload's name."""
        upload = await self.call("CreateUpload", adapter_pb.CreateUploadRequest(parent=adapter))
        for name, data in _contents(folder):
            for offset in range(0, max(len(data), 1), chunk):
                await self.put(upload.name, name, offset, data[offset : offset + chunk])
        return str(upload.name)

    async def put(self, upload: str, file: str, offset: int, data: bytes, sha256: str = "") -> int:
        sha256 = sha256 or hashlib.sha256(data).hexdigest()
        request = adapter_pb.PutChunkRequest(upload=upload, file=file, offset=offset, data=data, sha256=sha256)
        return int((await self.call("PutChunk", request)).received_bytes)

    async def error(self, method: str, request: Any) -> LorryError:
        with pytest.raises(LorryError) as caught:
            await self.call(method, request)
        return caught.value


def _contents(folder: Path) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in sorted(folder.iterdir())]


@dataclass
class Platform:
    """``store_root`` holds the objects; replace ``store`` before a call to break it."""

    channel: grpc.aio.Channel
    registry: Registry
    source: SnapshotSource
    store: SwitchedStore
    gate: Gate
    versions: VersionService
    lifecycle: LifecycleService
    engine: FakeEngine
    store_root: Path
    spool: Path
    admin: Client
    address: str

    def client(self, key: str) -> Client:
        return Client(self.channel, key)

    async def tenant(self, name: str, role: int = tenant_pb.ROLE_OWNER) -> Client:
        """A new tenant's client, or another key of one that is there."""
        with contextlib.suppress(AlreadyExists):
            await self.admin.call("CreateTenant", tenant_pb.CreateTenantRequest(tenant_id=name))
        request = tenant_pb.CreateApiKeyRequest(parent=f"tenants/{name}", principal=f"p{role}", role=role)  # type: ignore[arg-type]  # an enum
        return self.client((await self.admin.call("CreateApiKey", request)).text)


class SwitchedStore:
    """Which store is asked: tests point it at one that is down."""

    def __init__(self, store: ObjectStore) -> None:
        self.now = store

    async def put_file(self, key: str, path: Path) -> None:
        await self.now.put_file(key, path)

    async def exists(self, key: str) -> bool:
        return await self.now.exists(key)

    async def delete(self, key: str) -> None:
        await self.now.delete(key)


class Gate:
    """The real validator, which tells its rows one by one: ``closed`` holds it back after the first."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def validate(self, folder: Path, base: BaseFacts, on_check: Callable[[Check], None]) -> ValidationReport:
        limits = Limits(max_rank=8)
        report = await asyncio.to_thread(validate_directory, folder, DecoderSpec.from_config(base.config), limits)
        for check in report.checks:
            on_check(check)
            await self.open.wait()
            if self.error is not None:
                raise self.error
        return report


@pytest.fixture
async def platform(url: str, tmp_path: Path) -> AsyncIterator[Platform]:
    registry = Registry(url, PEPPERS, CHEAP)
    key = await _first_admin(registry.database, PEPPERS)
    assert key is not None
    source = registry.snapshots()
    await source.start()
    store = SwitchedStore(DirectoryStore(tmp_path / "objects"))
    gate = Gate()
    versions = registry.versions(store, gate.validate, tmp_path / "spool", LIMITS)
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    engine = fake_engine(BaseDigest(BASE_SHA256))
    engines = EngineReplicas([engine])
    lifecycle = registry.lifecycle(store, engines)
    add_admin_services(server, registry, source, versions, lifecycle, engines)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        admin = Client(channel, key)
        yield Platform(
            channel, registry, source, store, gate, versions, lifecycle, engine, tmp_path / "objects",
            tmp_path / "spool", admin, f"127.0.0.1:{port}"
        )  # fmt: skip
    await server.stop(None)
    await registry.close()


@pytest.fixture
async def with_base(platform: Platform) -> Platform:
    request = tenant_pb.CreateBaseModelRequest(
        base_model_id="tiny",
        base_sha256=BASE_SHA256,
        tokenizer_sha256=TOKENIZER_SHA256,
        config_json=json.dumps(BASE_CONFIG),
    )
    await platform.admin.call("CreateBaseModel", request)
    return platform

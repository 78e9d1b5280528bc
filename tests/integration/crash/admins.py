"""Administrators that change their tenants all the time over the wire, and send each request until it is answered."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from lorry.api.v1.adapter_admin_pb2_grpc import AdapterAdminServiceStub
from lorry.api.v1.tenant_admin_pb2_grpc import TenantAdminServiceStub
from tests.unit.adapters.craft import tensors, write_adapter

AGAIN = frozenset(
    (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
)
"""What a killed process makes of a call. Any other answer is final, and none is expected."""
CHUNK = 1000
PAUSE_S = 0.05
"""Between an administrator's turns, so that streams have most of the machine."""
BASE = "models/tiny"


@dataclass(frozen=True, slots=True)
class Answered:
    """A request with a ``request_id``, and its answer."""

    method: str
    request: Any
    answer: Any


@dataclass
class Administrator:
    """Of one tenant, which it makes with ``prepare``: adapter ``a`` has two versions and the alias ``prod``, ``held``
    is pinned hard. Only this one changes the tenant, so each answer says whether the ones before were done once."""

    address: str
    key: str
    tenant: str
    folder: Path
    answered: list[Answered] = field(default_factory=list)
    tried: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _stubs: list[Any] = field(default_factory=list)
    _revision: int = 0
    _version: int = 0

    @property
    def adapter(self) -> str:
        return f"tenants/{self.tenant}/adapters/a"

    @property
    def models(self) -> list[str]:
        """What its members may ask for."""
        held = f"tenants/{self.tenant}/adapters/held"
        return [BASE, self.adapter, f"{self.adapter}@prod", f"{self.adapter}/versions/1", held]

    async def prepare(self) -> str:
        """Answers the key of a member."""
        parent = f"tenants/{self.tenant}"
        await self.once("CreateTenant", tenant_pb.CreateTenantRequest(tenant_id=self.tenant))
        await self.once("CreateGrant", tenant_pb.CreateGrantRequest(parent=parent, resource=BASE))
        for name in ("held", "a"):
            await self.once("CreateAdapter", adapter_pb.CreateAdapterRequest(parent=parent, adapter_id=name))
        held = await self._new_version("held")
        await self.call("SetPin", tenant_pb.SetPinRequest(parent=parent, version=held.name))
        for _ in range(2):
            await self.upload()
        await self._point("SetAlias", adapter_pb.SetAliasRequest(parent=self.adapter, alias_id="prod", version=1))
        limits = tenant_pb.QuotaLimits(concurrency=1000, tokens_per_month=1_000_000_000)
        for adapter in ("", self.adapter):
            await self.call("SetQuota", tenant_pb.SetQuotaRequest(parent=parent, adapter=adapter, limits=limits))
        caller = tenant_pb.CreateApiKeyRequest(parent=parent, principal="caller", role=tenant_pb.ROLE_MEMBER)
        return str((await self.once("CreateApiKey", caller)).text)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            for turn in (self.keys, self.aliases, self.grants, self.pins, self.aliases, self.upload):
                await turn()
                await asyncio.sleep(PAUSE_S)

    async def keys(self) -> None:
        parent = f"tenants/{self.tenant}"
        principal = f"robot{next(self._numbers)}"
        new = tenant_pb.CreateApiKeyRequest(parent=parent, principal=principal, role=tenant_pb.ROLE_MEMBER)
        made = (await self.once("CreateApiKey", new)).api_key
        rotated = (await self.once("RotateApiKey", tenant_pb.RotateApiKeyRequest(name=made.name))).api_key
        assert rotated.principal == principal
        revoked = await self.call("RevokeApiKey", tenant_pb.RevokeApiKeyRequest(name=rotated.name))
        assert revoked.HasField("revoke_time")

    async def aliases(self) -> None:
        name = f"{self.adapter}@prod"
        await self._point("SetAlias", adapter_pb.SetAliasRequest(parent=self.adapter, alias_id="prod", version=2))
        await self._point("SetCanary", adapter_pb.SetCanaryRequest(name=name, version=1, permille=300))
        await self._point("PromoteCanary", adapter_pb.PromoteCanaryRequest(name=name))
        back = await self._point("RollbackAlias", adapter_pb.RollbackAliasRequest(name=name))
        assert back.version == 2
        await self._point("SetAlias", adapter_pb.SetAliasRequest(parent=self.adapter, alias_id="prod", version=1))

    async def grants(self) -> None:
        """Of an adapter of its own, which is granted to it already: that one is ended and given again."""
        resource = f"tenants/{self.tenant}/adapters/held"
        grant = tenant_pb.CreateGrantRequest(parent=f"tenants/{self.tenant}", resource=resource)
        active = await self.once("CreateGrant", grant)
        await self.call("RevokeGrant", tenant_pb.RevokeGrantRequest(name=active.name))
        assert (await self.once("CreateGrant", grant)).name != active.name

    async def pins(self) -> None:
        parent = f"tenants/{self.tenant}"
        pin = tenant_pb.SetPinRequest(
            parent=parent, version=f"{self.adapter}/versions/1", mode=tenant_pb.PIN_MODE_DEFAULT
        )
        await self.call("SetPin", pin)
        await self.call("ClearPin", tenant_pb.ClearPinRequest(parent=parent, adapter=self.adapter))

    async def upload(self) -> None:
        made = await self._new_version("a")
        self._version += 1
        assert made.version == self._version, "a version was made twice, or is lost"

    async def _new_version(self, name: str) -> Any:
        parent, seed = f"tenants/{self.tenant}/adapters/{name}", next(self._numbers)
        folder = write_adapter(self.folder / str(seed), weights=tensors(seed=seed))
        upload = await self.once("CreateUpload", adapter_pb.CreateUploadRequest(parent=parent))
        for file in sorted(folder.iterdir()):
            data = file.read_bytes()
            for offset in range(0, len(data), CHUNK):
                chunk = data[offset : offset + CHUNK]
                sha256 = hashlib.sha256(chunk).hexdigest()
                put = adapter_pb.PutChunkRequest(
                    upload=upload.name, file=file.name, offset=offset, data=chunk, sha256=sha256
                )
                assert (await self.call("PutChunk", put)).received_bytes >= offset + len(chunk)
        new = adapter_pb.CreateAdapterVersionRequest(parent=parent, upload=upload.name, base=BASE)
        return await self.once("CreateAdapterVersion", new)

    async def _point(self, method: str, request: Any) -> Any:
        moved = await self.once(method, request)
        self._revision += 1
        assert moved.revision == self._revision, f"{method}: an alias was moved twice, or not at all"
        return moved

    async def once(self, method: str, request: Any) -> Any:
        """With a ``request_id`` of its own."""
        sent = type(request)()
        sent.CopyFrom(request)
        sent.request_id = f"{self.tenant}-{next(self._numbers)}"
        answer = await self.call(method, sent)
        self.answered.append(Answered(method, sent, answer))
        return answer

    async def call(self, method: str, request: Any) -> Any:
        """The same request until it is answered."""
        async with asyncio.timeout(90):
            while True:
                self.tried += 1
                try:
                    return await self._send(method, request)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in AGAIN:
                        raise
                    await asyncio.sleep(0.05)

    async def _send(self, method: str, request: Any) -> Any:
        stub = next(stub for stub in self._stubs if hasattr(stub, method))
        return await getattr(stub, method)(request, metadata=(("authorization", f"Bearer {self.key}"),), timeout=10)

    def open(self, channel: grpc.aio.Channel) -> None:
        self._stubs = [AdapterAdminServiceStub(channel), TenantAdminServiceStub(channel)]

    async def repeat(self) -> int:
        """Sends what was answered once more. The answer is what it was, or for what may change the same resource; the
        text of a key is told once."""
        for one in self.answered:
            if one.method == "CreateUpload":
                continue  # it is used up: another of the same name would be opened
            again, was = await self.call(one.method, one.request), one.answer
            if one.method in ("CreateApiKey", "RotateApiKey"):
                assert again.text == ""
                again, was = again.api_key.name, was.api_key.name
            elif one.method in ("CreateTenant", "CreateAdapter", "CreateGrant"):
                again, was = again.name, was.name
            assert again == was, f"{one.method} {one.request}"
        return len(self.answered)


__all__ = ["BASE", "Administrator", "Answered"]

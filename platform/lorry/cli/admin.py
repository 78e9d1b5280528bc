"""The admin API as the command line and the demo use it: over the wire, like anybody."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc.aio

from lorry.api.status import error_from_rpc
from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import adapter_admin_pb2_grpc, tenant_admin_pb2_grpc
from lorry.api.v1 import tenant_admin_pb2 as tenants
from lorry.errors import InvalidRequest

ROLES = {"owner": tenants.ROLE_OWNER, "member": tenants.ROLE_MEMBER, "admin": tenants.ROLE_PLATFORM_ADMIN}

_WATCH_S = 5.0
"""For the rows that are still on their way when the call has ended."""

Progress = Callable[[int, int], None]
"""(bytes sent, bytes in all)."""
OnCheck = Callable[[adapters.ValidationCheck], None]


class AdminClient:
    """Raises leaves of ``lorry.errors``."""

    def __init__(self, address: str, api_key: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._adapters: Any = adapter_admin_pb2_grpc.AdapterAdminServiceStub(self._channel)
        self._tenants: Any = tenant_admin_pb2_grpc.TenantAdminServiceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {api_key}"),)

    async def close(self) -> None:
        await self._channel.close(None)

    async def create_tenant(self, tenant: str, display_name: str) -> tenants.Tenant:
        request = tenants.CreateTenantRequest(tenant_id=tenant, display_name=display_name)
        made: tenants.Tenant = await self._call(self._tenants.CreateTenant, request)
        return made

    async def create_key(self, tenant: str, principal: str, role: str) -> tenants.CreateApiKeyResponse:
        """``text`` of the answer is the key, told this once."""
        request = tenants.CreateApiKeyRequest(parent=f"tenants/{tenant}", principal=principal, role=ROLES[role])
        made: tenants.CreateApiKeyResponse = await self._call(self._tenants.CreateApiKey, request)
        return made

    async def revoke_key(self, name: str) -> None:
        await self._call(self._tenants.RevokeApiKey, tenants.RevokeApiKeyRequest(name=name))

    async def create_base(
        self, name: str, base_sha256: str, tokenizer_sha256: str, context_tokens: int, config_json: str
    ) -> tenants.BaseModel:
        request = tenants.CreateBaseModelRequest(
            base_model_id=name,
            base_sha256=base_sha256,
            tokenizer_sha256=tokenizer_sha256,
            context_tokens=context_tokens,
            config_json=config_json,
        )
        made: tenants.BaseModel = await self._call(self._tenants.CreateBaseModel, request)
        return made

    async def grant(self, tenant: str, resource: str) -> tenants.Grant:
        """``resource``: `models/{base}` or `tenants/{t}/adapters/{a}`."""
        request = tenants.CreateGrantRequest(parent=f"tenants/{tenant}", resource=resource)
        made: tenants.Grant = await self._call(self._tenants.CreateGrant, request)
        return made

    async def create_adapter(self, tenant: str, adapter: str, display_name: str = "") -> adapters.Adapter:
        request = adapters.CreateAdapterRequest(
            parent=f"tenants/{tenant}", adapter_id=adapter, display_name=display_name
        )
        made: adapters.Adapter = await self._call(self._adapters.CreateAdapter, request)
        return made

    async def push(
        self,
        adapter: str,
        folder: Path,
        base: str,
        progress: Progress = lambda done, total: None,
        on_check: OnCheck | None = None,
    ) -> adapters.AdapterVersion:
        """Uploads the folder's files in chunks and registers them as the next version of ``adapter``
        (`tenants/{t}/adapters/{a}`) on ``base`` (`models/{base}`). ``on_check`` is told every row of the validation as
        it becomes known. Raises AdapterRefused with the report's violations."""
        files = await asyncio.to_thread(_files, folder)
        upload = await self._call(self._adapters.CreateUpload, adapters.CreateUploadRequest(parent=adapter))
        total = sum(size for _, size in files)
        done = 0
        for path, size in files:
            for offset in range(0, max(size, 1), int(upload.max_chunk_bytes)):
                data = await asyncio.to_thread(_read, path, offset, int(upload.max_chunk_bytes))
                chunk = adapters.PutChunkRequest(
                    upload=upload.name,
                    file=path.name,
                    offset=offset,
                    data=data,
                    sha256=hashlib.sha256(data).hexdigest(),
                )
                await self._call(self._adapters.PutChunk, chunk)
                done += len(data)
                progress(done, total)
        request = adapters.CreateAdapterVersionRequest(parent=adapter, upload=upload.name, base=base)
        if on_check is None:
            return await self._create(request)
        watch = self._watch(upload.name)
        await watch.initial_metadata()
        told = asyncio.create_task(_tell(watch, on_check))
        try:
            return await self._create(request)
        finally:
            # What the call made or refused is its own to say; the rows have all been sent by now.
            await asyncio.wait([told], timeout=_WATCH_S)
            watch.cancel()
            await asyncio.gather(told, return_exceptions=True)

    async def watch(self, name: str) -> AsyncIterator[adapters.WatchAdapterVersionResponse]:
        """The checks of a version (`.../versions/{n}`), or of the call on an upload (`.../uploads/{id}`), then the
        version."""
        call = self._watch(name)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
        finally:
            call.cancel()

    def _watch(self, name: str) -> Any:
        request = adapters.WatchAdapterVersionRequest(name=name)
        return self._adapters.WatchAdapterVersion(request, metadata=self._metadata)

    async def _create(self, request: adapters.CreateAdapterVersionRequest) -> adapters.AdapterVersion:
        made: adapters.AdapterVersion = await self._call(self._adapters.CreateAdapterVersion, request)
        return made

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None


async def _tell(watch: Any, on_check: OnCheck) -> None:
    async for message in watch:
        if message.HasField("check"):
            on_check(message.check)


def _files(folder: Path) -> list[tuple[Path, int]]:
    """Regular files directly in the folder and their sizes. Raises InvalidRequest where there is no such folder."""
    if not folder.is_dir():
        raise InvalidRequest.field("folder", f"{folder} is not a folder; give the one that PEFT saved")
    return sorted((path, path.stat().st_size) for path in folder.iterdir() if path.is_file())


def _read(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as handle:
        handle.seek(offset)
        return handle.read(size)


__all__ = ["AdminClient"]

"""AdapterAdminService: translates between the API and the registry's services, and decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from lorry.adapters.report import Check
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.api.v1 import adapter_admin_pb2_grpc as pb_grpc
from lorry.errors import InvalidRequest
from lorry.registry import Caller, PageRequest, Registry
from lorry.registry.adapters.lifecycle import LifecycleService
from lorry.registry.adapters.versions import VersionService
from lorry.registry.adapters.watching import Examined, Made
from lorry.registry.names import (
    AdapterName,
    parse_adapter,
    parse_base,
    parse_tenant,
    parse_upload,
    parse_version,
)
from lorry_admin import messages
from lorry_admin.access import Access
from lorry_admin.aliases import AliasAdmin
from lorry_admin.engines import EngineReplicas
from lorry_admin.lifecycle import LifecycleAdmin
from lorry_admin.summaries import summary

Context = grpc.aio.ServicerContext[Any, Any]


class AdapterAdmin(AliasAdmin, LifecycleAdmin, pb_grpc.AdapterAdminServiceServicer):
    """Errors go through as LorryError: the server needs ``lorry.api.status.ErrorInterceptor``."""

    def __init__(
        self,
        access: Access,
        registry: Registry,
        versions: VersionService,
        lifecycle: LifecycleService,
        engines: EngineReplicas,
    ) -> None:
        self._access = access
        self._lifecycle = lifecycle
        self._engines = engines
        self._adapters = registry.adapters
        self._aliases = registry.aliases
        self._names = registry.live_names
        self._observed = registry.observed
        self._versions = versions

    async def CreateAdapter(self, request: pb.CreateAdapterRequest, context: Context) -> pb.Adapter:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        row = await self._adapters.create(caller, tenant, request.adapter_id, request.display_name, request.request_id)
        return messages.adapter(tenant, row)

    async def GetAdapter(self, request: pb.GetAdapterRequest, context: Context) -> pb.Adapter:
        caller = await self._access.caller(context)
        name = parse_adapter("name", request.name)
        if _is_full(request.view):
            return summary(name.tenant, await self._adapters.get_summary(caller, name))
        return messages.adapter(name.tenant, await self._adapters.get(caller, name))

    async def ListAdapters(self, request: pb.ListAdaptersRequest, context: Context) -> pb.ListAdaptersResponse:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        wanted = PageRequest.of(request.page_size, request.page_token)
        if _is_full(request.view):
            told = await self._adapters.list_summaries(caller, tenant, wanted, deleted=request.show_deleted)
            full = [summary(tenant, one) for one in told.rows]
            return pb.ListAdaptersResponse(adapters=full, next_page_token=told.next_token)
        page = await self._adapters.list(caller, tenant, wanted, deleted=request.show_deleted)
        rows = [messages.adapter(tenant, row) for row in page.rows]
        return pb.ListAdaptersResponse(adapters=rows, next_page_token=page.next_token)

    async def CreateUpload(self, request: pb.CreateUploadRequest, context: Context) -> pb.Upload:
        caller = await self._access.caller(context)
        name = parse_adapter("parent", request.parent)
        state = await self._versions.create_upload(caller, name, request.request_id)
        return messages.upload(name.bare, state, self._versions.limits)

    async def GetUpload(self, request: pb.GetUploadRequest, context: Context) -> pb.Upload:
        caller = await self._access.caller(context)
        name, upload = parse_upload("name", request.name)
        state = await self._versions.get_upload(caller, name, upload)
        return messages.upload(name.bare, state, self._versions.limits)

    async def PutChunk(self, request: pb.PutChunkRequest, context: Context) -> pb.PutChunkResponse:
        caller = await self._access.caller(context)
        name, upload = parse_upload("upload", request.upload)
        received = await self._versions.put_chunk(
            caller, name, upload, request.file, request.offset, request.data, request.sha256
        )
        return pb.PutChunkResponse(received_bytes=received)

    async def CreateAdapterVersion(
        self, request: pb.CreateAdapterVersionRequest, context: Context
    ) -> pb.AdapterVersion:
        caller = await self._access.caller(context)
        name = parse_adapter("parent", request.parent)
        if request.WhichOneof("source") == "s3_uri":
            return await self._import(caller, name, request)
        of, upload = parse_upload("upload", request.upload)
        if of != name:
            raise InvalidRequest.field("upload", f"belongs to {of.bare}, not to {name.bare}; use one of this adapter")
        base = parse_base("base", request.base)
        if request.validate_only:
            found, row = await self._versions.examine(caller, name, upload, base, request.expected_sha256)
            return messages.candidate(name.bare, found, row)
        made = await self._versions.create(caller, name, upload, base, request.expected_sha256, request.request_id)
        return messages.version(name.bare, made, full=True)

    async def _import(
        self, caller: Caller, name: AdapterName, request: pb.CreateAdapterVersionRequest
    ) -> pb.AdapterVersion:
        uri, base, sha256 = request.s3_uri, parse_base("base", request.base), request.expected_sha256
        if request.validate_only:
            found, row = await self._versions.examine_import(caller, name, uri, base, sha256)
            return messages.candidate(name.bare, found, row)
        made = await self._versions.import_from(caller, name, uri, base, sha256, request.request_id)
        return messages.version(name.bare, made, full=True)

    async def GetAdapterVersion(self, request: pb.GetAdapterVersionRequest, context: Context) -> pb.AdapterVersion:
        caller = await self._access.caller(context)
        name = parse_version("name", request.name)
        return messages.version(name.bare, await self._versions.get(caller, name), full=True)

    async def WatchAdapterVersion(
        self, request: pb.WatchAdapterVersionRequest, context: Context
    ) -> AsyncIterator[pb.WatchAdapterVersionResponse]:
        caller = await self._access.caller(context)
        if "/uploads/" not in request.name:
            named = parse_version("name", request.name)
            made = messages.version(named.bare, await self._versions.get(caller, named), full=True)
            for row in made.checks:
                yield pb.WatchAdapterVersionResponse(check=row)
            yield pb.WatchAdapterVersionResponse(version=made)
            return
        name, upload = parse_upload("name", request.name)
        async with self._versions.watch(caller, name, upload) as news:
            await context.send_initial_metadata(())
            async for one in news:
                yield _news(name, one)

    async def ListAdapterVersions(
        self, request: pb.ListAdapterVersionsRequest, context: Context
    ) -> pb.ListAdapterVersionsResponse:
        caller = await self._access.caller(context)
        name = parse_adapter("parent", request.parent)
        page = await self._versions.list(caller, name, PageRequest.of(request.page_size, request.page_token))
        rows = [messages.version(name.bare, row, full=False) for row in page.rows]
        return pb.ListAdapterVersionsResponse(versions=rows, next_page_token=page.next_token)

    async def QuarantineAdapterVersion(
        self, request: pb.QuarantineAdapterVersionRequest, context: Context
    ) -> pb.AdapterVersion:
        caller = await self._access.caller(context)
        name = parse_version("name", request.name)
        row = await self._versions.quarantine(caller, name, request.reason)
        return messages.version(name.bare, row, full=True)


def _is_full(view: int) -> bool:
    """Raises InvalidRequest for a number that is no view."""
    if view not in (pb.ADAPTER_VIEW_UNSPECIFIED, pb.ADAPTER_VIEW_BASIC, pb.ADAPTER_VIEW_FULL):
        raise InvalidRequest.field("view", f"{view} is not one; use ADAPTER_VIEW_BASIC or ADAPTER_VIEW_FULL")
    return view == pb.ADAPTER_VIEW_FULL


def _news(name: AdapterName, one: Check | Made) -> pb.WatchAdapterVersionResponse:
    if isinstance(one, Check):
        return pb.WatchAdapterVersionResponse(check=messages.check(one.to_dict()))
    if isinstance(one, Examined):
        return pb.WatchAdapterVersionResponse(version=messages.candidate(name.bare, one.candidate, one.base))
    return pb.WatchAdapterVersionResponse(version=messages.version(name.bare, one, full=True))


__all__ = ["AdapterAdmin"]

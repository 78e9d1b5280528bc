"""AdapterAdminService's methods on aliases, their canaries and their past."""

from __future__ import annotations

from typing import Any

import grpc.aio

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.api.v1 import adapter_admin_pb2_grpc as pb_grpc
from lorry.registry import PageRequest
from lorry.registry.aliases.service import AliasService
from lorry.registry.names import AdapterName, parse_adapter, parse_alias
from lorry_admin import messages
from lorry_admin.access import Access

Context = grpc.aio.ServicerContext[Any, Any]


class AliasAdmin(pb_grpc.AdapterAdminServiceServicer):
    """A part of ``AdapterAdmin``, which sets the fields."""

    _access: Access
    _aliases: AliasService

    async def SetAlias(self, request: pb.SetAliasRequest, context: Context) -> pb.Alias:
        caller = await self._access.caller(context)
        parent = parse_adapter("parent", request.parent)
        name = AdapterName(parent.tenant, parent.adapter, alias=request.alias_id)
        row = await self._aliases.set(caller, name, request.version, request.etag, request.request_id)
        return messages.alias(parent, row)

    async def GetAlias(self, request: pb.GetAliasRequest, context: Context) -> pb.Alias:
        caller = await self._access.caller(context)
        name = parse_alias("name", request.name)
        return messages.alias(name, await self._aliases.get(caller, name))

    async def ListAliases(self, request: pb.ListAliasesRequest, context: Context) -> pb.ListAliasesResponse:
        caller = await self._access.caller(context)
        parent = parse_adapter("parent", request.parent)
        page = await self._aliases.list(caller, parent, PageRequest.of(request.page_size, request.page_token))
        rows = [messages.alias(parent, row) for row in page.rows]
        return pb.ListAliasesResponse(aliases=rows, next_page_token=page.next_token)

    async def ListAliasRevisions(
        self, request: pb.ListAliasRevisionsRequest, context: Context
    ) -> pb.ListAliasRevisionsResponse:
        caller = await self._access.caller(context)
        name = parse_alias("name", request.name)
        page = await self._aliases.revisions(caller, name, PageRequest.of(request.page_size, request.page_token))
        rows = [messages.alias(name, row) for row in page.rows]
        return pb.ListAliasRevisionsResponse(revisions=rows, next_page_token=page.next_token)

    async def SetCanary(self, request: pb.SetCanaryRequest, context: Context) -> pb.Alias:
        caller = await self._access.caller(context)
        name = parse_alias("name", request.name)
        row = await self._aliases.set_canary(
            caller, name, request.version, request.permille, request.etag, request.request_id
        )
        return messages.alias(name, row)

    async def PromoteCanary(self, request: pb.PromoteCanaryRequest, context: Context) -> pb.Alias:
        caller = await self._access.caller(context)
        name = parse_alias("name", request.name)
        return messages.alias(name, await self._aliases.promote(caller, name, request.etag, request.request_id))

    async def RollbackAlias(self, request: pb.RollbackAliasRequest, context: Context) -> pb.Alias:
        caller = await self._access.caller(context)
        name = parse_alias("name", request.name)
        return messages.alias(name, await self._aliases.roll_back(caller, name, request.etag, request.request_id))

    async def DeleteAlias(self, request: pb.DeleteAliasRequest, context: Context) -> pb.Alias:
        caller = await self._access.caller(context)
        name = parse_alias("name", request.name)
        return messages.alias(name, await self._aliases.delete(caller, name, request.etag, request.request_id))


__all__ = ["AliasAdmin"]

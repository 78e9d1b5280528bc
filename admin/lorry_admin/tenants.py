"""TenantAdminService: translates between the API and the registry's services, and decides nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc.aio
from google.protobuf.empty_pb2 import Empty

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2_grpc as pb_grpc
from lorry.errors import InvalidRequest
from lorry.registry import PageRequest, Registry
from lorry.registry.fleet.desk import Desk
from lorry.registry.names import (
    AdapterName,
    parse_adapter,
    parse_base,
    parse_grant,
    parse_key,
    parse_tenant,
    parse_version,
)
from lorry_admin import messages
from lorry_admin.access import Access
from lorry_admin.limits import LimitsAdmin
from lorry_admin.records import RecordsAdmin

Context = grpc.aio.ServicerContext[Any, Any]


class TenantAdmin(LimitsAdmin, RecordsAdmin, pb_grpc.TenantAdminServiceServicer):
    """Errors go through as LorryError: the server needs ``lorry.api.status.ErrorInterceptor``."""

    def __init__(self, access: Access, registry: Registry, desk: Desk) -> None:
        self._access = access
        self._registry = registry
        self._desk = desk

    async def CreateTenant(self, request: pb.CreateTenantRequest, context: Context) -> pb.Tenant:
        caller = await self._access.caller(context)
        row = await self._registry.tenants.create(
            caller, request.tenant_id, request.display_name, request.request_id, request.weight or 1
        )
        return messages.tenant(row)

    async def GetTenant(self, request: pb.GetTenantRequest, context: Context) -> pb.Tenant:
        caller = await self._access.caller(context)
        return messages.tenant(await self._registry.tenants.get(caller, parse_tenant("name", request.name)))

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Context) -> pb.ListTenantsResponse:
        caller = await self._access.caller(context)
        page = await self._registry.tenants.list(caller, PageRequest.of(request.page_size, request.page_token))
        return pb.ListTenantsResponse(
            tenants=[messages.tenant(row) for row in page.rows], next_page_token=page.next_token
        )

    async def UpdateTenant(self, request: pb.UpdateTenantRequest, context: Context) -> pb.Tenant:
        caller = await self._access.caller(context)
        row = await self._registry.tenants.update(
            caller,
            parse_tenant("tenant.name", request.tenant.name),
            list(request.update_mask.paths),
            display_name=request.tenant.display_name,
            suspended=request.tenant.suspended,
            import_prefixes=list(request.tenant.import_prefixes),
            weight=request.tenant.weight,
            etag=request.tenant.etag,
        )
        return messages.tenant(row)

    async def CreateApiKey(self, request: pb.CreateApiKeyRequest, context: Context) -> pb.CreateApiKeyResponse:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        row, text = await self._registry.keys.create(
            caller, tenant, request.principal, messages.role_name(request.role), _expiry(request), request.request_id
        )
        return pb.CreateApiKeyResponse(api_key=messages.api_key(tenant, row), text=text)

    async def ListApiKeys(self, request: pb.ListApiKeysRequest, context: Context) -> pb.ListApiKeysResponse:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        page = await self._registry.keys.list(caller, tenant, PageRequest.of(request.page_size, request.page_token))
        rows = [messages.api_key(tenant, row) for row in page.rows]
        return pb.ListApiKeysResponse(api_keys=rows, next_page_token=page.next_token)

    async def RotateApiKey(self, request: pb.RotateApiKeyRequest, context: Context) -> pb.CreateApiKeyResponse:
        caller = await self._access.caller(context)
        tenant, key = parse_key("name", request.name)
        row, text = await self._registry.keys.rotate(
            caller, tenant, key, _overlap(request), _expiry(request), request.request_id
        )
        return pb.CreateApiKeyResponse(api_key=messages.api_key(tenant, row), text=text)

    async def RevokeApiKey(self, request: pb.RevokeApiKeyRequest, context: Context) -> pb.ApiKey:
        caller = await self._access.caller(context)
        tenant, key = parse_key("name", request.name)
        return messages.api_key(tenant, await self._registry.keys.revoke(caller, tenant, key))

    async def CreateBaseModel(self, request: pb.CreateBaseModelRequest, context: Context) -> pb.BaseModel:
        caller = await self._access.caller(context)
        row = await self._registry.bases.create(
            caller,
            request.base_model_id,
            request.base_sha256,
            request.tokenizer_sha256,
            request.config_json,
            request.context_tokens,
            request.request_id,
        )
        return messages.base_model(row)

    async def GetBaseModel(self, request: pb.GetBaseModelRequest, context: Context) -> pb.BaseModel:
        caller = await self._access.caller(context)
        return messages.base_model(await self._registry.bases.get(caller, parse_base("name", request.name)))

    async def ListBaseModels(self, request: pb.ListBaseModelsRequest, context: Context) -> pb.ListBaseModelsResponse:
        caller = await self._access.caller(context)
        page = await self._registry.bases.list(caller, PageRequest.of(request.page_size, request.page_token))
        rows = [messages.base_model(row) for row in page.rows]
        return pb.ListBaseModelsResponse(base_models=rows, next_page_token=page.next_token)

    async def CreateGrant(self, request: pb.CreateGrantRequest, context: Context) -> pb.Grant:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        row = await self._registry.grants.create(caller, tenant, request.resource, request.request_id)
        return messages.grant(tenant, row)

    async def RevokeGrant(self, request: pb.RevokeGrantRequest, context: Context) -> pb.Grant:
        caller = await self._access.caller(context)
        tenant, grant = parse_grant("name", request.name)
        return messages.grant(tenant, await self._registry.grants.revoke(caller, tenant, grant))

    async def ListGrants(self, request: pb.ListGrantsRequest, context: Context) -> pb.ListGrantsResponse:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        page = await self._registry.grants.list(caller, tenant, PageRequest.of(request.page_size, request.page_token))
        rows = [messages.grant(tenant, row) for row in page.rows]
        return pb.ListGrantsResponse(grants=rows, next_page_token=page.next_token)

    async def SetPin(self, request: pb.SetPinRequest, context: Context) -> pb.Pin:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        version = parse_version("version", request.version)
        mode = messages.pin_mode(request.mode)
        return messages.pin(tenant, version, await self._registry.grants.set_pin(caller, tenant, version, mode))

    async def ListPins(self, request: pb.ListPinsRequest, context: Context) -> pb.ListPinsResponse:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        wanted = PageRequest.of(request.page_size, request.page_token)
        page = await self._registry.grants.list_pins(caller, tenant, wanted)
        named = [(AdapterName(row.adapter.tenant.name, row.adapter.name), row) for row in page.rows]
        rows = [messages.pin(tenant, adapter, row) for adapter, row in named]
        return pb.ListPinsResponse(pins=rows, next_page_token=page.next_token)

    async def ClearPin(self, request: pb.ClearPinRequest, context: Context) -> Empty:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        await self._registry.grants.clear_pin(caller, tenant, parse_adapter("adapter", request.adapter))
        return Empty()


def _expiry(request: pb.CreateApiKeyRequest | pb.RotateApiKeyRequest) -> datetime | None:
    if not request.HasField("expire_time"):
        return None
    try:
        return request.expire_time.ToDatetime(tzinfo=UTC)
    except ValueError as error:
        raise InvalidRequest.field("expire_time", f"is not a time ({error})") from None


def _overlap(request: pb.RotateApiKeyRequest) -> timedelta:
    try:
        return request.overlap.ToTimedelta()
    except (ValueError, OverflowError) as error:
        raise InvalidRequest.field("overlap", f"is not a duration ({error})") from None


__all__ = ["TenantAdmin"]

"""TenantAdminService's methods on quotas."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf.empty_pb2 import Empty

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2_grpc as pb_grpc
from lorry.registry import PageRequest, Registry
from lorry.registry.limits.bounds import LimitValues
from lorry.registry.limits.service import QuotaView, quota_etag
from lorry.registry.names import parse_adapter, parse_quota, parse_tenant
from lorry_admin.access import Access

Context = grpc.aio.ServicerContext[Any, Any]


class LimitsAdmin(pb_grpc.TenantAdminServiceServicer):
    """A part of ``TenantAdmin``, which sets the fields."""

    _access: Access
    _registry: Registry

    async def SetQuota(self, request: pb.SetQuotaRequest, context: Context) -> pb.Quota:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        adapter = parse_adapter("adapter", request.adapter) if request.adapter else None
        values = {descriptor.name: value for descriptor, value in request.limits.ListFields()}
        return _quota(
            tenant, await self._registry.quotas.set(caller, tenant, adapter, LimitValues(**values), request.etag)
        )

    async def ListQuotas(self, request: pb.ListQuotasRequest, context: Context) -> pb.ListQuotasResponse:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        page = await self._registry.quotas.list(caller, tenant, PageRequest.of(request.page_size, request.page_token))
        return pb.ListQuotasResponse(
            quotas=[_quota(tenant, view) for view in page.rows], next_page_token=page.next_token
        )

    async def DeleteQuota(self, request: pb.DeleteQuotaRequest, context: Context) -> Empty:
        caller = await self._access.caller(context)
        tenant, quota = parse_quota("name", request.name)
        await self._registry.quotas.delete(caller, tenant, quota, request.etag)
        return Empty()


def _quota(tenant: str, view: QuotaView) -> pb.Quota:
    row = view.row
    found = pb.Quota(
        name=f"tenants/{tenant}/quotas/{row.id}",
        adapter=view.adapter,
        limits=pb.QuotaLimits(
            requests_per_minute=row.requests_per_minute,
            concurrency=row.concurrency,
            queue_length=row.queue_length,
            tokens_per_month=row.tokens_per_month,
            max_tokens_cap=row.max_tokens_cap,
        ),
        etag=quota_etag(row),
    )
    if view.use is not None:
        found.use.CopyFrom(pb.QuotaUse(month=view.month, tokens_used=view.use.used, tokens_leased=view.use.leased))
    return found


__all__ = ["LimitsAdmin"]

"""Quotas, prepared."""

from __future__ import annotations

from google.protobuf.empty_pb2 import Empty

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.client.admin.names import tenant_name
from lorry.client.prepared import PAGE_SIZE, TENANTS, Paged, Unary
from lorry.errors import InvalidRequest


def set_quota(
    tenant: str,
    *,
    adapter: str = "",
    requests_per_minute: int | None = None,
    concurrency: int | None = None,
    queue_length: int | None = None,
    tokens_per_month: int | None = None,
    max_tokens_cap: int | None = None,
    etag: str = "",
) -> Unary[pb.Quota]:
    """Sets limits in place of those that were there: what is None limits nothing. ``adapter`` "": everything that the
    tenant does. ``etag`` ``new``: none must be there."""
    limits = {
        "requests_per_minute": requests_per_minute,
        "concurrency": concurrency,
        "queue_length": queue_length,
        "tokens_per_month": tokens_per_month,
        "max_tokens_cap": max_tokens_cap,
    }
    try:
        made = pb.QuotaLimits(**{name: value for name, value in limits.items() if value is not None})
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"limits: a value does not fit its field: {error}") from error
    request = pb.SetQuotaRequest(parent=tenant_name(tenant), adapter=adapter, limits=made, etag=etag)
    return TENANTS.unary("SetQuota", request, pb.Quota, repeatable=not etag)


def list_quotas(tenant: str) -> Paged[pb.Quota]:
    """A tenant's limits with what is used of them; the tenant's own first."""
    request = pb.ListQuotasRequest(parent=tenant_name(tenant), page_size=PAGE_SIZE)
    return TENANTS.paged("ListQuotas", request, pb.ListQuotasResponse, lambda page: page.quotas)


def delete_quota(name: str, *, etag: str = "") -> Unary[Empty]:
    """Takes `tenants/{t}/quotas/{id}` away. Without one: no change."""
    return TENANTS.unary("DeleteQuota", pb.DeleteQuotaRequest(name=name, etag=etag), Empty, repeatable=not etag)


__all__ = ["delete_quota", "list_quotas", "set_quota"]

"""Tenants, prepared. A tenant is ``acme`` or `tenants/acme`."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.field_mask_pb2 import FieldMask

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.client.admin.names import new_request_id, tenant_name
from lorry.client.prepared import PAGE_SIZE, TENANTS, Paged, Unary
from lorry.errors import InvalidRequest
from lorry.request import WEIGHT_MAX


def create_tenant(tenant: str, display_name: str = "", *, weight: int | None = None) -> Unary[pb.Tenant]:
    """Raises AlreadyExists where the name is taken; a name is never used again. ``weight``: as ``update_tenant``'s,
    None is 1."""
    _check(weight)
    request = pb.CreateTenantRequest(
        tenant_id=tenant, display_name=display_name, request_id=new_request_id(), weight=weight or 0
    )
    return TENANTS.unary("CreateTenant", request, pb.Tenant)


def get_tenant(tenant: str) -> Unary[pb.Tenant]:
    """One tenant."""
    return TENANTS.unary("GetTenant", pb.GetTenantRequest(name=tenant_name(tenant)), pb.Tenant)


def list_tenants() -> Paged[pb.Tenant]:
    """All, by name."""
    request = pb.ListTenantsRequest(page_size=PAGE_SIZE)
    return TENANTS.paged("ListTenants", request, pb.ListTenantsResponse, lambda page: page.tenants)


def update_tenant(
    tenant: str,
    *,
    display_name: str | None = None,
    suspended: bool | None = None,
    import_prefixes: Sequence[str] | None = None,
    weight: int | None = None,
    etag: str = "",
) -> Unary[pb.Tenant]:
    """Changes what is not None. ``import_prefixes``: `s3://bucket/prefix/` each, instead of those that were there.
    ``weight``: 1 to 100, its turns for one of a tenant of weight 1."""
    changed = pb.Tenant(name=tenant_name(tenant), etag=etag)
    mask = FieldMask()
    if display_name is not None:
        changed.display_name = display_name
        mask.paths.append("display_name")
    if suspended is not None:
        changed.suspended = suspended
        mask.paths.append("suspended")
    if import_prefixes is not None:
        changed.import_prefixes.extend(import_prefixes)
        mask.paths.append("import_prefixes")
    _check(weight)
    if weight is not None:
        changed.weight = weight
        mask.paths.append("weight")
    request = pb.UpdateTenantRequest(tenant=changed, update_mask=mask)
    return TENANTS.unary("UpdateTenant", request, pb.Tenant, repeatable=not etag)


def _check(weight: int | None) -> None:
    """Of what has no place on the wire, or means none there, the server would never hear."""
    if weight is not None and not 1 <= weight <= WEIGHT_MAX:
        raise InvalidRequest.field("weight", f"{weight}; give 1 to {WEIGHT_MAX}")


__all__ = ["create_tenant", "get_tenant", "list_tenants", "update_tenant"]

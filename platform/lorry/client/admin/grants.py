"""Grants and pins, prepared."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.empty_pb2 import Empty

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.client.admin.names import new_request_id, tenant_name
from lorry.client.prepared import PAGE_SIZE, TENANTS, Paged, Unary
from lorry.errors import InvalidRequest

PIN_MODES: Mapping[str, pb.PinMode.ValueType] = {"hard": pb.PIN_MODE_HARD, "default": pb.PIN_MODE_DEFAULT}


def grant(tenant: str, resource: str) -> Unary[pb.Grant]:
    """Lets ``tenant`` generate with ``resource``: `models/{base}` or `tenants/{t}/adapters/{a}`."""
    request = pb.CreateGrantRequest(parent=tenant_name(tenant), resource=resource, request_id=new_request_id())
    return TENANTS.unary("CreateGrant", request, pb.Grant)


def list_grants(tenant: str) -> Paged[pb.Grant]:
    """A tenant's grants, newest first, revoked ones included."""
    request = pb.ListGrantsRequest(parent=tenant_name(tenant), page_size=PAGE_SIZE)
    return TENANTS.paged("ListGrants", request, pb.ListGrantsResponse, lambda page: page.grants)


def revoke_grant(name: str) -> Unary[pb.Grant]:
    """Ends `tenants/{t}/grants/{id}`. Again: no change."""
    return TENANTS.unary("RevokeGrant", pb.RevokeGrantRequest(name=name), pb.Grant)


def set_pin(tenant: str, version: str, *, mode: str = "hard") -> Unary[pb.Pin]:
    """Holds ``tenant`` to `tenants/{t}/adapters/{a}/versions/{n}`. ``mode``: one of ``PIN_MODES``."""
    if mode not in PIN_MODES:
        raise InvalidRequest.field("mode", f"{mode!r}; use one of {', '.join(PIN_MODES)}")
    request = pb.SetPinRequest(parent=tenant_name(tenant), version=version, mode=PIN_MODES[mode])
    return TENANTS.unary("SetPin", request, pb.Pin)


def list_pins(tenant: str) -> Paged[pb.Pin]:
    """A tenant's pins, by adapter."""
    request = pb.ListPinsRequest(parent=tenant_name(tenant), page_size=PAGE_SIZE)
    return TENANTS.paged("ListPins", request, pb.ListPinsResponse, lambda page: page.pins)


def clear_pin(tenant: str, adapter: str) -> Unary[Empty]:
    """Takes the pin on `tenants/{t}/adapters/{a}` away. Without one: no change."""
    return TENANTS.unary("ClearPin", pb.ClearPinRequest(parent=tenant_name(tenant), adapter=adapter), Empty)


__all__ = ["PIN_MODES", "clear_pin", "grant", "list_grants", "list_pins", "revoke_grant", "set_pin"]

"""API keys, prepared. A made key's ``text`` is in its answer and nowhere else, so a call that makes one is never sent
twice: the first key would be nobody's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.client.admin.names import duration, tenant_name, timestamp
from lorry.client.prepared import PAGE_SIZE, TENANTS, Paged, Unary
from lorry.errors import InvalidRequest

ROLES: Mapping[str, pb.Role.ValueType] = {
    "owner": pb.ROLE_OWNER,
    "operator": pb.ROLE_OPERATOR,
    "member": pb.ROLE_MEMBER,
    "viewer": pb.ROLE_VIEWER,
    "admin": pb.ROLE_PLATFORM_ADMIN,
}


def role_of(name: str) -> pb.Role.ValueType:
    """Raises InvalidRequest for what is not one of ``ROLES``."""
    if name not in ROLES:
        raise InvalidRequest.field("role", f"{name!r}; use one of {', '.join(ROLES)}")
    return ROLES[name]


def create_key(
    tenant: str, principal: str, role: str, *, expire_time: datetime | None = None
) -> Unary[pb.CreateApiKeyResponse]:
    """``role``: one of ``ROLES``. ``text`` of the answer is the key, told this once."""
    request = pb.CreateApiKeyRequest(
        parent=tenant_name(tenant),
        principal=principal,
        role=role_of(role),
        expire_time=timestamp("expire_time", expire_time),
    )
    return TENANTS.unary("CreateApiKey", request, pb.CreateApiKeyResponse, repeatable=False)


def list_keys(tenant: str) -> Paged[pb.ApiKey]:
    """A tenant's keys, by name, without their text."""
    request = pb.ListApiKeysRequest(parent=tenant_name(tenant), page_size=PAGE_SIZE)
    return TENANTS.paged("ListApiKeys", request, pb.ListApiKeysResponse, lambda page: page.api_keys)


def rotate_key(
    name: str, *, overlap_s: float = 0.0, expire_time: datetime | None = None
) -> Unary[pb.CreateApiKeyResponse]:
    """A new key of the same principal; the one of that name holds on for ``overlap_s`` more. ``expire_time`` is the new
    one's."""
    request = pb.RotateApiKeyRequest(
        name=name, overlap=duration(overlap_s), expire_time=timestamp("expire_time", expire_time)
    )
    return TENANTS.unary("RotateApiKey", request, pb.CreateApiKeyResponse, repeatable=False)


def revoke_key(name: str) -> Unary[pb.ApiKey]:
    """Ends it. Again: no change."""
    return TENANTS.unary("RevokeApiKey", pb.RevokeApiKeyRequest(name=name), pb.ApiKey)


__all__ = ["ROLES", "create_key", "list_keys", "revoke_key", "role_of", "rotate_key"]

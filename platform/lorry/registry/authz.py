"""Who a caller is, and the one place where a tenant id becomes a *verified* one.

Every repository function on a tenant's data takes a VerifiedTenantId, so no SQL for a tenant can be
reached without having passed ``verify_tenant``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, Protocol

from lorry.errors import ResourceNotFound
from lorry.ids import TenantId

VerifiedTenantId = NewType("VerifiedTenantId", TenantId)
"""A tenant id that an authenticated caller may act on. Minted by ``verify_tenant`` alone."""


class Role(StrEnum):
    """What a principal may do; ``lorry.registry.rights`` says it action by action. PLATFORM_ADMIN: everything, for
    every tenant. OWNER: what an operator may, and its tenant's keys and users. OPERATOR: what a viewer may, its
    tenant's adapters, and generate. MEMBER: generate. VIEWER: read what is its tenant's."""

    PLATFORM_ADMIN = "platform_admin"
    OWNER = "owner"
    OPERATOR = "operator"
    MEMBER = "member"
    VIEWER = "viewer"


class Authority(Protocol):
    """What a checked API key or user token proves."""

    @property
    def tenant(self) -> TenantId: ...
    @property
    def role(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller. ``tenant_name`` is the ``{t}`` of ``tenants/{t}``; ``principal`` a name
    within the tenant; ``key_id`` the API key's, or ``user/{login id}``; ``admin`` whether the role is the platform's
    administrator; ``expires_at`` when what it does ends (Unix seconds): with its key, or with its web session; None
    for never."""

    tenant: VerifiedTenantId
    tenant_name: str
    principal: str
    role: str
    key_id: str
    admin: bool
    expires_at: float | None = None


def not_visible() -> ResourceNotFound:
    """The one answer for what does not exist and what a caller may not see."""
    return ResourceNotFound("name: no resource of this name is visible to this key; check the names in it")


def verify_tenant(authority: Authority, tenant: TenantId) -> VerifiedTenantId:
    """``tenant``, verified: the authority's own, or any for a platform admin.

    Raises ResourceNotFound otherwise, since a stranger must not learn which tenants exist.
    """
    if authority.role != Role.PLATFORM_ADMIN and authority.tenant != tenant:
        raise not_visible()
    return VerifiedTenantId(tenant)


__all__ = [
    "Authority",
    "Caller",
    "Role",
    "VerifiedTenantId",
    "not_visible",
    "verify_tenant",
]

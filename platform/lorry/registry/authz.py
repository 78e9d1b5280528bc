"""Who a caller is, and the one place where a tenant id becomes a *verified* one.

Every repository function on a tenant's data takes a VerifiedTenantId, so no SQL for a tenant can be
reached without having passed ``verify_tenant``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, Protocol

from lorry.errors import ResourceNotFound, RoleTooLow
from lorry.ids import TenantId

VerifiedTenantId = NewType("VerifiedTenantId", TenantId)
"""A tenant id that an authenticated caller may act on. Minted by ``verify_tenant`` alone."""


class Role(StrEnum):
    """What a principal may do. PLATFORM_ADMIN: everything, for every tenant. OWNER: its own tenant's
    adapters, and generate. MEMBER: generate."""

    PLATFORM_ADMIN = "platform_admin"
    OWNER = "owner"
    MEMBER = "member"


class Authority(Protocol):
    """What a checked API key proves."""

    @property
    def tenant(self) -> TenantId: ...
    @property
    def role(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller. ``tenant_name`` is the ``{t}`` of ``tenants/{t}``; ``principal`` a name
    within the tenant; ``admin`` whether the role is the platform's administrator; ``expires_at`` when the key
    ends (Unix seconds), None for never."""

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


def require_admin(caller: Caller, action: str) -> None:
    """Raises RoleTooLow unless the caller is a platform admin."""
    if not caller.admin:
        raise RoleTooLow(f"role: {caller.role!r} may not {action}; use a key of role {Role.PLATFORM_ADMIN.value!r}")


def require_owner(caller: Caller, action: str) -> None:
    """Raises RoleTooLow unless the caller owns its tenant or is a platform admin."""
    if not caller.admin and caller.role != Role.OWNER:
        raise RoleTooLow(f"role: {caller.role!r} may not {action}; use a key of role {Role.OWNER.value!r}")


__all__ = [
    "Authority",
    "Caller",
    "Role",
    "VerifiedTenantId",
    "not_visible",
    "require_admin",
    "require_owner",
    "verify_tenant",
]

"""Which roles a tenant's principals may have, and who may give them."""

from __future__ import annotations

from lorry.errors import InvalidRequest
from lorry.registry.authz import Caller, Role
from lorry.registry.rights import require

PLATFORM_TENANT = "platform"
"""The tenant of the platform's administrators, made at first start."""
_OF_TENANTS = [role.value for role in (Role.VIEWER, Role.MEMBER, Role.OPERATOR, Role.OWNER)]


def check_role(caller: Caller, tenant_name: str, role: str) -> None:
    """Raises InvalidRequest for a role that is none or none of that tenant, and RoleTooLow for one above the caller's
    own. Callers are owners at least."""
    if role == Role.PLATFORM_ADMIN:
        require(caller, "make platform administrators")
    if (role == Role.PLATFORM_ADMIN) != (tenant_name == PLATFORM_TENANT) or role not in set(Role):
        raise InvalidRequest.field(
            "role", f"{role!r} is not one for tenant {tenant_name!r}; use {', '.join(_OF_TENANTS)}; platform_admin for "
            f"{PLATFORM_TENANT!r} alone"
        )  # fmt: skip


__all__ = ["PLATFORM_TENANT", "check_role"]

"""Which roles may do what: the one table, and the one function that reads it.

A service's method names its action before it does anything else. What is not in the table every caller may do within
its own tenant: read the tenant itself and the base models, list and look up the models that it was granted.
"""

from __future__ import annotations

from collections.abc import Mapping

from lorry.errors import RoleTooLow
from lorry.registry.authz import Caller, Role

_READ = (Role.VIEWER, Role.OPERATOR, Role.OWNER)
_GENERATE = (Role.MEMBER, Role.OPERATOR, Role.OWNER)
_OPERATE = (Role.OPERATOR, Role.OWNER)
_OWN = (Role.OWNER,)
_ADMINISTER: tuple[Role, ...] = ()

ACTIONS: Mapping[str, tuple[Role, ...]] = {
    "generate": _GENERATE,
    "count tokens": _GENERATE,
    "read adapters": _READ,
    "list adapters": _READ,
    "read versions": _READ,
    "list versions": _READ,
    "read residency": _READ,
    "list residency": _READ,
    "read aliases": _READ,
    "list aliases": _READ,
    "list grants": _READ,
    "list pins": _READ,
    "list quotas": _READ,
    "read usage": _READ,
    "list recent requests": _READ,
    "export usage": _READ,
    "list prices": _READ,
    "read audit events": _READ,
    "verify audit events": _READ,
    "create adapters": _OPERATE,
    "change adapters": _OPERATE,
    "delete adapters": _OPERATE,
    "undelete adapters": _OPERATE,
    "purge adapters": _OPERATE,
    "upload adapters": _OPERATE,
    "create versions": _OPERATE,
    "deprecate versions": _OPERATE,
    "quarantine versions": _OPERATE,
    "place versions": _OPERATE,
    "set aliases": _OPERATE,
    "delete aliases": _OPERATE,
    "roll aliases back": _OPERATE,
    "set canaries": _OPERATE,
    "promote canaries": _OPERATE,
    "set pins": _OPERATE,
    "clear pins": _OPERATE,
    "list sessions": _OPERATE,
    "end sessions": _OPERATE,
    "create API keys": _OWN,
    "list API keys": _OWN,
    "rotate API keys": _OWN,
    "revoke API keys": _OWN,
    "create users": _OWN,
    "list users": _OWN,
    "change users": _OWN,
    "set passwords": _OWN,
    "create tenants": _ADMINISTER,
    "list tenants": _ADMINISTER,
    "change tenants": _ADMINISTER,
    "register base models": _ADMINISTER,
    "give grants": _ADMINISTER,
    "revoke grants": _ADMINISTER,
    "set quotas": _ADMINISTER,
    "delete quotas": _ADMINISTER,
    "set prices": _ADMINISTER,
    "make platform administrators": _ADMINISTER,
    "list replicas": _ADMINISTER,
    "list engine memory": _ADMINISTER,
    "list waiting requests": _ADMINISTER,
    "list all recent requests": _ADMINISTER,
    "read replicas": _ADMINISTER,
    "drain replicas": _ADMINISTER,
}
"""The roles that may, the least of them first; a platform administrator may do everything, and is in no row."""


def require(caller: Caller, action: str) -> None:
    """Raises RoleTooLow unless the caller's role may. ``action`` is a row of ``ACTIONS``."""
    roles = ACTIONS[action]
    if not caller.admin and caller.role not in roles:
        least = roles[0] if roles else Role.PLATFORM_ADMIN
        raise RoleTooLow(f"role: {caller.role!r} may not {action}; use a key or a login of role {least.value!r}")


__all__ = ["ACTIONS", "require"]

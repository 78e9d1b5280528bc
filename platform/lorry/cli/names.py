"""Short names of the command line: ``pirate``, ``pirate@prod``, ``pirate/versions/3`` of the session's tenant."""

from __future__ import annotations

import re

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.client.admin import SyncAdminClient
from lorry.errors import InvalidRequest, VersionNotReady

_SHORT = re.compile(r"[^/@\s]+(@[^/@\s]+|/versions/[0-9]+)?")
_VERSION = re.compile(r"tenants/[^/]+/adapters/[^/@]+/versions/[0-9]+")
_ALIAS = re.compile(r"(tenants/[^/]+/adapters/[^/@]+)@([^/@]+)")


def full_name(text: str, tenant: str) -> str:
    """The server judges what it finds under it; here only the shape counts."""
    if text.startswith(("tenants/", "models/")):
        return text
    if not _SHORT.fullmatch(text):
        raise InvalidRequest.field(
            "name", f"{text[:80]!r} is none; write pirate, pirate@prod, pirate/versions/3, or the full name"
        )
    if not tenant:
        raise InvalidRequest.field(
            "name", f"{text!r} is short and no tenant is known; write tenants/.../adapters/{text}, or give --tenant"
        )
    return f"tenants/{tenant}/adapters/{text}"


def bare_name(name: str) -> str:
    """The adapter's, of any full name of it."""
    return name.partition("/versions/")[0].partition("@")[0]


def alias_name(name: str) -> tuple[str, str]:
    """(adapter, alias) of a full name with an ``@``."""
    found = _ALIAS.fullmatch(name)
    if found is None:
        raise InvalidRequest.field("alias", f"{name[:120]!r} names no alias; write pirate@prod")
    return found[1], found[2]


def version_name(name: str) -> str:
    """``name``, which must say a version's number."""
    if not _VERSION.fullmatch(name):
        raise InvalidRequest.field("version", f"{name[:120]!r} names no version; write pirate/versions/3")
    return name


def version_meant(admin: SyncAdminClient, name: str) -> str:
    """The version that a version's, alias's or adapter's name means now: of a bare name the newest READY one."""
    if _VERSION.fullmatch(name):
        return name
    if _ALIAS.fullmatch(name):
        return f"{bare_name(name)}/versions/{admin.get_alias(name).version}"
    for version in admin.list_versions(name):
        if version.state == pb.ADAPTER_VERSION_STATE_READY:
            return version.name
    raise VersionNotReady(f"{name} has no READY version; name one of lorry adapters versions")


def split_address(text: str) -> tuple[str, bool]:
    """``HOST:PORT``, and whether TLS is meant, of it or of a URL of it."""
    for scheme, secure in (("https://", True), ("http://", False)):
        if text.startswith(scheme):
            return text.removeprefix(scheme).rstrip("/"), secure
    return text, False


__all__ = ["alias_name", "bare_name", "full_name", "version_meant", "version_name", "split_address"]

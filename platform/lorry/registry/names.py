"""Resource names, matched whole: never by prefix, never split and guessed, never a path.

A part is lower-case letters and digits joined by single ``.``, ``_`` or ``-``, at most 63 characters, so
no part can be empty, ``..``, or hold a separator of the grammar itself (``/``, ``@``, ``:``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lorry.errors import InvalidRequest

PART_MAX = 63
DISPLAY_NAME_MAX = 200
VERSION_MAX = 999_999_999
_PART = r"[a-z0-9]+(?:[._-][a-z0-9]+)*"
_VERSION = r"[1-9][0-9]{0,8}"

_PART_RE = re.compile(_PART)
_BASE_RE = re.compile(rf"models/({_PART})")
_TENANT_RE = re.compile(rf"tenants/({_PART})")
_ADAPTER_RE = re.compile(rf"tenants/({_PART})/adapters/({_PART})")
_VERSION_RE = re.compile(rf"tenants/({_PART})/adapters/({_PART})/versions/({_VERSION})")
_ALIAS_RE = re.compile(rf"tenants/({_PART})/adapters/({_PART})@({_PART})")
_KEY_RE = re.compile(rf"tenants/({_PART})/apiKeys/([0-9a-f]{{16}})")
_GRANT_RE = re.compile(rf"tenants/({_PART})/grants/(gr_[0-9a-f]{{32}})")
_REPLICA_RE = re.compile(rf"replicas/({_PART})")
_QUOTA_RE = re.compile(rf"tenants/({_PART})/quotas/(qu_[0-9a-f]{{32}})")
_UPLOAD_RE = re.compile(rf"tenants/({_PART})/adapters/({_PART})/uploads/([0-9a-f]{{32}})")
_USER_RE = re.compile(rf"tenants/({_PART})/users/({_PART})")
_SESSION_RE = re.compile(rf"tenants/({_PART})/sessions/(ws_[0-9a-f]{{32}})")
NAME_MAX = 256


@dataclass(frozen=True, slots=True)
class BaseName:
    base: str

    def __str__(self) -> str:
        return f"models/{self.base}"


@dataclass(frozen=True, slots=True)
class AdapterName:
    """``version`` and ``alias`` exclude each other; with neither it is the bare name."""

    tenant: str
    adapter: str
    version: int | None = None
    alias: str = ""

    @property
    def bare(self) -> str:
        return f"tenants/{self.tenant}/adapters/{self.adapter}"

    def __str__(self) -> str:
        if self.version is not None:
            return f"{self.bare}/versions/{self.version}"
        return f"{self.bare}@{self.alias}" if self.alias else self.bare


def is_part(text: str) -> bool:
    """Whether ``text`` can be the name of a tenant, adapter, base or alias."""
    return len(text) <= PART_MAX and _PART_RE.fullmatch(text) is not None


def check_part(field: str, text: str) -> str:
    """``text`` itself, or InvalidRequest naming ``field`` with the grammar."""
    if not is_part(text):
        raise InvalidRequest.field(
            field,
            f"{text[:80]!r} is not a name; use 1 to {PART_MAX} of a-z and 0-9, joined by single '.', '_' or '-'",
        )
    return text


def check_text(field: str, text: str, limit: int) -> str:
    """Words for people: ``text`` itself, or InvalidRequest where it is longer than ``limit`` characters or has
    control characters, which PostgreSQL and logs do not take."""
    if len(text) > limit:
        raise InvalidRequest.field(field, f"{len(text)} characters; use at most {limit}")
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise InvalidRequest.field(field, "has control characters; leave them out")
    return text


def parse_model(name: str) -> BaseName | AdapterName | None:
    """What ``GenerateRequest.model`` names, or None where it is not a name at all."""
    if len(name) > NAME_MAX:
        return None
    if (found := _BASE_RE.fullmatch(name)) and is_part(found[1]):
        return BaseName(found[1])
    for pattern in (_ADAPTER_RE, _VERSION_RE, _ALIAS_RE):
        if (found := pattern.fullmatch(name)) is None:
            continue
        if not all(is_part(part) for part in found.groups()):
            return None
        if pattern is _VERSION_RE:
            return AdapterName(found[1], found[2], version=int(found[3]))
        return AdapterName(found[1], found[2], alias=found[3] if pattern is _ALIAS_RE else "")
    return None


def parse_tenant(field: str, name: str) -> str:
    """The ``{t}`` of ``tenants/{t}``, or InvalidRequest."""
    found = _TENANT_RE.fullmatch(name)
    if found is None or not is_part(found[1]):
        raise InvalidRequest.field(field, f"{name[:80]!r} is not a tenant's name; use `tenants/{{tenant}}`")
    return found[1]


def parse_base(field: str, name: str) -> str:
    """The ``{base}`` of ``models/{base}``, or InvalidRequest."""
    found = parse_model(name)
    if not isinstance(found, BaseName):
        raise InvalidRequest.field(field, f"{name[:80]!r} is not a base model's name; use `models/{{base}}`")
    return found.base


def parse_adapter(field: str, name: str) -> AdapterName:
    """A bare adapter name, or InvalidRequest."""
    found = parse_model(name)
    if not isinstance(found, AdapterName) or found.version is not None or found.alias:
        raise InvalidRequest.field(
            field, f"{name[:80]!r} is not an adapter's name; use `tenants/{{tenant}}/adapters/{{adapter}}`"
        )
    return found


def parse_version(field: str, name: str) -> AdapterName:
    """A version's name (``version`` is set), or InvalidRequest."""
    found = parse_model(name)
    if not isinstance(found, AdapterName) or found.version is None:
        raise InvalidRequest.field(
            field,
            f"{name[:80]!r} is not a version's name; use `tenants/{{tenant}}/adapters/{{adapter}}/versions/{{n}}`",
        )
    return found


def parse_alias(field: str, name: str) -> AdapterName:
    """An alias's name (``alias`` is set), or InvalidRequest."""
    found = parse_model(name)
    if not isinstance(found, AdapterName) or not found.alias:
        raise InvalidRequest.field(
            field, f"{name[:80]!r} is not an alias's name; use `tenants/{{tenant}}/adapters/{{adapter}}@{{alias}}`"
        )
    return found


def parse_key(field: str, name: str) -> tuple[str, str]:
    """(tenant, key id) of ``tenants/{t}/apiKeys/{id}``, or InvalidRequest."""
    tenant, key = _parts(_KEY_RE, field, name, "an API key", "tenants/{tenant}/apiKeys/{id}")
    return tenant, key


def parse_grant(field: str, name: str) -> tuple[str, str]:
    """(tenant, grant id) of ``tenants/{t}/grants/{id}``, or InvalidRequest."""
    tenant, grant = _parts(_GRANT_RE, field, name, "a grant", "tenants/{tenant}/grants/{id}")
    return tenant, grant


def parse_replica(field: str, name: str) -> str:
    """The ``{r}`` of ``replicas/{r}``, or InvalidRequest."""
    return _parts(_REPLICA_RE, field, name, "a replica", "replicas/{replica}")[0]


def parse_quota(field: str, name: str) -> tuple[str, str]:
    """(tenant, quota id) of ``tenants/{t}/quotas/{id}``, or InvalidRequest."""
    tenant, quota = _parts(_QUOTA_RE, field, name, "a quota", "tenants/{tenant}/quotas/{id}")
    return tenant, quota


def parse_user(field: str, name: str) -> tuple[str, str]:
    """(tenant, user) of ``tenants/{t}/users/{u}``, or InvalidRequest."""
    tenant, user = _parts(_USER_RE, field, name, "a user", "tenants/{tenant}/users/{user}")
    return tenant, user


def parse_session(field: str, name: str) -> tuple[str, str]:
    """(tenant, session id) of ``tenants/{t}/sessions/{id}``, or InvalidRequest."""
    tenant, session = _parts(_SESSION_RE, field, name, "a session", "tenants/{tenant}/sessions/{id}")
    return tenant, session


def parse_upload(field: str, name: str) -> tuple[AdapterName, str]:
    """(adapter, upload id) of ``tenants/{t}/adapters/{a}/uploads/{id}``, or InvalidRequest."""
    tenant, adapter, upload = _parts(
        _UPLOAD_RE, field, name, "an upload", "tenants/{tenant}/adapters/{adapter}/uploads/{id}"
    )
    return AdapterName(tenant, adapter), upload


def _parts(pattern: re.Pattern[str], field: str, name: str, kind: str, form: str) -> tuple[str, ...]:
    found = pattern.fullmatch(name) if len(name) <= NAME_MAX else None
    if found is None or not all(is_part(part) for part in found.groups()):
        raise InvalidRequest.field(field, f"{name[:80]!r} is not {kind}'s name; use `{form}`")
    return found.groups()


__all__ = [
    "DISPLAY_NAME_MAX",
    "NAME_MAX",
    "PART_MAX",
    "VERSION_MAX",
    "AdapterName",
    "BaseName",
    "check_part",
    "check_text",
    "is_part",
    "parse_adapter",
    "parse_alias",
    "parse_base",
    "parse_grant",
    "parse_key",
    "parse_model",
    "parse_replica",
    "parse_quota",
    "parse_session",
    "parse_tenant",
    "parse_upload",
    "parse_user",
    "parse_version",
]

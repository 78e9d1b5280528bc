"""What ``loading`` reads, as plain columns of plain tables. Each is made once, since to write such a statement takes
longer than to run it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, DateTime, Select, bindparam, select, tuple_, type_coerce

from lorry.registry.db.tables import (
    Adapter,
    AdapterFileRow,
    AdapterVersion,
    Alias,
    AliasRevision,
    ApiKey,
    BaseModel,
    Grant,
    Login,
    Pin,
    Principal,
    Quota,
    Tenant,
    WebSession,
)

_tenant, _key, _principal, _base = (each.__table__.c for each in (Tenant, ApiKey, Principal, BaseModel))
_adapter, _version, _file = (each.__table__.c for each in (Adapter, AdapterVersion, AdapterFileRow))
_alias, _revision = Alias.__table__.c, AliasRevision.__table__.c
_grant, _pin, _quota = (each.__table__.c for each in (Grant, Pin, Quota))
_login, _session = Login.__table__.c, WebSession.__table__.c

_Rows = Select[*tuple[Any, ...]]


def _plain(time: ColumnElement[Any], name: str) -> ColumnElement[Any]:
    """As the driver gives it: what ``UtcDateTime`` makes of each of a million values takes a second."""
    return type_coerce(time, DateTime(timezone=True)).label(name)


class Query(NamedTuple):
    """``page`` takes ``after`` (the last key of the page before, or "") and ``most``; ``of`` takes ``ids``. A row's key
    comes first in it."""

    page: _Rows
    of: _Rows


class PartQuery(NamedTuple):
    """Rows that belong to others: ``within`` takes ``low`` and ``high`` (keys of those, both included), ``of`` takes
    ``ids``."""

    within: _Rows
    of: _Rows


def _query(rows: _Rows, key: Any, of: Any = None) -> Query:
    page = rows.where(key > bindparam("after")).order_by(key).limit(bindparam("most"))
    return Query(page, rows.where((key if of is None else of).in_(bindparam("ids", expanding=True))))


def _recent(rows: _Rows, key: Any, changed: Any) -> Query:
    """A page takes ``since`` too: what changed before it is left out."""
    made = _query(rows, key)
    return made._replace(page=made.page.where(changed >= bindparam("since")))


def _part(rows: _Rows, key: Any) -> PartQuery:
    return PartQuery(
        rows.where(key >= bindparam("low"), key <= bindparam("high")),
        rows.where(key.in_(bindparam("ids", expanding=True))),
    )


TENANTS = _query(select(_tenant.id, _tenant.name, _tenant.suspended, _tenant.weight), _tenant.id)

KEYS = _query(
    select(
        _key.id,
        _key.tenant_id,
        _principal.name,
        _principal.role,
        _key.mac,
        _key.pepper_id,
        _plain(_key.expires_at, "expires_at"),
        _plain(_key.revoked_at, "revoked_at"),
    ).join_from(ApiKey.__table__, Principal.__table__, _principal.id == _key.principal_id),
    _key.id,
)

BASES = _query(
    select(
        _base.id,
        _base.name,
        _base.base_sha256,
        _base.tokenizer_sha256,
        _base.context_tokens,
        _base.config,
        _plain(_base.created_at, "created_at"),
    ),
    _base.id,
)

ADAPTERS = _query(
    select(
        _adapter.id,
        _adapter.tenant_id,
        _tenant.name.label("tenant_name"),
        _adapter.name,
        _plain(_adapter.deleted_at, "deleted_at"),
    ).join_from(Adapter.__table__, Tenant.__table__, _tenant.id == _adapter.tenant_id),
    _adapter.id,
)

VERSIONS = _part(
    select(
        _version.id,
        _version.adapter_id,
        _version.number,
        _version.base_model_id,
        _version.sha256,
        _version.prefix,
        _version.state,
        _version.vocabulary,
        _version.tokenizer_sha256,
        _version.tokenizer_vocabulary,
        _version.end_ids,
        _plain(_version.deprecated_at, "deprecated_at"),
        _plain(_version.created_at, "created_at"),
        _file.path,
        _file.size_bytes,
        _file.sha256.label("file_sha256"),
    )
    .outerjoin_from(AdapterVersion.__table__, AdapterFileRow.__table__, _file.version_id == _version.id)
    .order_by(_version.id, _file.path),
    _version.adapter_id,
)
"""A row for each file, one without a file for a version that has none; a version's rows are together."""

ALIASES = _part(
    select(
        _alias.adapter_id,
        _alias.name,
        _revision.number,
        _revision.canary_number,
        _revision.canary_permille,
    )
    .join_from(
        Alias.__table__,
        AliasRevision.__table__,
        (_revision.adapter_id == _alias.adapter_id) & (_revision.name == _alias.name),
    )
    .where(_revision.revision == _alias.revision, _revision.deleted.is_(False)),
    _alias.adapter_id,
)

GRANTS = _query(
    select(
        _grant.id, _grant.tenant_id, _grant.adapter_id, _grant.base_model_id, _plain(_grant.revoked_at, "revoked_at")
    ),
    _grant.id,
)

_pinned = tuple_(_pin.tenant_id, _pin.adapter_id)
_PINS = select(_pin.tenant_id, _pin.adapter_id, _pin.number, _pin.mode)
PINS = Query(
    _PINS.where(_pinned > tuple_(bindparam("after"), bindparam("after_adapter")))
    .order_by(_pin.tenant_id, _pin.adapter_id)
    .limit(bindparam("most")),
    _PINS.where(_pinned.in_(bindparam("ids", expanding=True))),
)
"""By tenant and adapter; ``ids`` are such pairs, ``after`` and ``after_adapter`` one."""

QUOTAS = _query(
    select(
        _quota.id,
        _quota.tenant_id,
        _quota.adapter_id,
        _quota.requests_per_minute,
        _quota.concurrency,
        _quota.queue_length,
        _quota.tokens_per_month,
        _quota.max_tokens_cap,
        _quota.revision,
    ),
    _quota.id,
    of=_quota.tenant_id,
)
"""``ids`` are tenants'."""

LOGINS = _recent(
    select(_login.id, _principal.role, _login.disabled, _plain(_login.changed_at, "changed_at")).join_from(
        Login.__table__, Principal.__table__, _principal.id == _login.principal_id
    ),
    _login.id,
    _login.changed_at,
)

SESSIONS = _recent(
    select(_session.id, _plain(_session.ended_at, "ended_at")).where(_session.ended_at.is_not(None)),
    _session.id,
    _session.ended_at,
)

__all__ = [
    "ADAPTERS",
    "ALIASES",
    "BASES",
    "GRANTS",
    "KEYS",
    "LOGINS",
    "PINS",
    "QUOTAS",
    "SESSIONS",
    "TENANTS",
    "VERSIONS",
    "PartQuery",
    "Query",
]

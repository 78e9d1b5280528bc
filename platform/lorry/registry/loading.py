"""Rows to snapshot entries: the only SQL that reads over all tenants.

Where it runs is for ``Database.of_one_moment`` to say. Every loader yields lists of at most ``CHUNK`` entries, of the
ids to load or, for None, of all. All are read by key in pages of plain columns, so that a full load holds no more than
a page of rows beside its entries. Texts that many rows share are one object (``intern``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from sys import intern
from typing import Any, TypeVar

from sqlalchemy import Connection, Result, Row

from lorry.adapters.manifest import AdapterFile, AdapterRef, files_digest
from lorry.adapters.plan import TextPlan
from lorry.errors import UnsupportedBase
from lorry.ids import AdapterDigest, AdapterScope, BaseDigest, TenantId
from lorry.layers.spec import DecoderSpec
from lorry.registry import queries
from lorry.registry.changes import Kind
from lorry.registry.db.base import utcnow
from lorry.registry.entries import (
    AdapterEntry,
    AliasEntry,
    BaseModelEntry,
    EndedSession,
    GrantEntry,
    KeyEntry,
    LoginEntry,
    PinEntry,
    QuotaEntry,
    TenantEntry,
    VersionEntry,
    VersionState,
)
from lorry.registry.queries import PartQuery, Query
from lorry.registry.tables import Rows
from lorry.registry.usertokens import REMEMBER_S

CHUNK = 250
Ids = Collection[str] | None
_E = TypeVar("_E")
Pairs = Sequence[tuple[TenantId, str]] | None
"""(tenant id, adapter id)."""
_log = logging.getLogger(__name__)


def everything(connection: Connection) -> Iterator[Rows]:
    """The whole registry in parts."""
    for tenant in tenants(connection, None):
        yield Rows(tenants=tenant)
    for key in keys(connection, None):
        yield Rows(keys=key)
    for base in bases(connection, None):
        yield Rows(bases=base)
    for adapter in adapters(connection, None):
        yield Rows(adapters=adapter)
    for grant in grants(connection, None):
        yield Rows(grants=grant)
    for pin in pins(connection, None):
        yield Rows(pins=[(row.tenant, row.adapter, row) for row in pin])
    for quota in quotas(connection, None):
        yield Rows(quotas=[(row.tenant, row.adapter, row) for row in quota])
    for login in logins(connection, None):
        yield Rows(logins=login)
    for ended in sessions(connection, None):
        yield Rows(sessions=ended)


def rows_of(connection: Connection, subjects: Mapping[Kind, Collection[str]]) -> Rows:
    """The rows that those changes are of, as they are now."""

    def load(kind: Kind, loader: Callable[[Connection, Ids], Iterator[list[_E]]]) -> list[_E]:
        ids = subjects[kind]
        return [row for part in loader(connection, ids) for row in part] if ids else []

    pinned, limited = _pairs(subjects[Kind.PIN]), _pairs(subjects[Kind.QUOTA])
    pin_rows = [row for part in pins(connection, pinned) for row in part] if pinned else []
    limit_rows = [row for part in quotas(connection, {t for t, _ in limited}) for row in part] if limited else []
    found_pins = {(row.tenant, row.adapter): row for row in pin_rows}
    found_limits = {(row.tenant, row.adapter): row for row in limit_rows}
    return Rows(
        tenants=load(Kind.TENANT, tenants),
        keys=load(Kind.API_KEY, keys),
        bases=load(Kind.BASE_MODEL, bases),
        adapters=load(Kind.ADAPTER, adapters),
        grants=load(Kind.GRANT, grants),
        pins=[(tenant, adapter, found_pins.get((tenant, adapter))) for tenant, adapter in pinned],
        quotas=[(tenant, adapter, found_limits.get((tenant, adapter))) for tenant, adapter in limited],
        logins=load(Kind.LOGIN, logins),
        sessions=load(Kind.SESSION, sessions),
    )


def _pairs(subjects: Collection[str]) -> list[tuple[TenantId, str]]:
    split = (subject.partition("/") for subject in subjects)
    return [(_tenant(tenant), intern(adapter)) for tenant, _, adapter in split]


def tenants(connection: Connection, ids: Ids) -> Iterator[list[TenantEntry]]:
    for rows in _pages(connection, queries.TENANTS, ids):
        yield [TenantEntry(_tenant(row.id), intern(row.name), row.suspended, row.weight) for row in rows]


def keys(connection: Connection, ids: Ids) -> Iterator[list[KeyEntry]]:
    for rows in _pages(connection, queries.KEYS, ids):
        yield [
            KeyEntry(
                key_id=row.id,
                tenant=_tenant(row.tenant_id),
                principal=intern(row.name),
                role=intern(row.role),
                mac=row.mac,
                pepper_id=intern(row.pepper_id),
                expires_at=_seconds(row.expires_at),
                revoked_at=_seconds(row.revoked_at),
            )
            for row in rows
        ]


def bases(connection: Connection, ids: Ids) -> Iterator[list[BaseModelEntry]]:
    """Without those whose config this release cannot serve: one of them must not stop revocations of others."""
    for rows in _pages(connection, queries.BASES, ids):
        found: list[BaseModelEntry] = []
        for row in rows:
            try:
                found.append(base_entry(row))
            except UnsupportedBase as error:
                _log.warning("base model %s is left out of the snapshot: %s", row.name, error)
        yield found


def base_entry(row: Row[*tuple[Any, ...]]) -> BaseModelEntry:
    return BaseModelEntry(
        id=intern(row.id),
        name=row.name,
        base_digest=BaseDigest(row.base_sha256),
        tokenizer_sha256=row.tokenizer_sha256,
        context_tokens=row.context_tokens,
        config=row.config,
        spec=DecoderSpec.from_config(row.config),
        created_at=_time(row.created_at),
    )


def adapters(connection: Connection, ids: Ids) -> Iterator[list[AdapterEntry]]:
    """With every version and alias of each."""
    for rows in _pages(connection, queries.ADAPTERS, ids):
        wanted = {"low": rows[0].id, "high": rows[-1].id} if ids is None else {"ids": list(ids)}
        versions = _versions(_parts(connection, queries.VERSIONS, wanted))
        aliases = _aliases(_parts(connection, queries.ALIASES, wanted))
        yield [
            AdapterEntry(
                id=intern(row.id),
                tenant=_tenant(row.tenant_id),
                tenant_name=intern(row.tenant_name),
                name=row.name,
                versions=versions.get(row.id, {}),
                aliases=aliases.get(row.id, {}),
                deleted=row.deleted_at is not None,
            )
            for row in rows
        ]


def _parts(connection: Connection, query: PartQuery, wanted: Mapping[str, Any]) -> Sequence[Row[*tuple[Any, ...]]]:
    """A page of others by its ends: the list of them would be a new statement for each page's length."""
    return connection.execute(query.of if "ids" in wanted else query.within, wanted).all()


def _versions(files_of: Sequence[Row[*tuple[Any, ...]]]) -> dict[str, dict[int, VersionEntry]]:
    found: dict[str, dict[int, VersionEntry]] = {}
    for _, group in groupby(files_of, itemgetter(0)):
        rows = list(group)
        files = [AdapterFile(intern(path), size, sha256) for *_, path, size, sha256 in rows if path is not None]
        entry = _version(rows[0], tuple(files))
        found.setdefault(rows[0].adapter_id, {})[entry.number] = entry
    return found


def _version(row: Row[*tuple[Any, ...]], files: tuple[AdapterFile, ...]) -> VersionEntry:
    """A row whose files do not hash to its digest is never served."""
    state = VersionState(row.state)
    if state is VersionState.READY and files_digest(files) != row.sha256:
        _log.error("version %s: its files do not hash to its digest %s; it is not served", row.id, row.sha256)
        state = VersionState.QUARANTINED
    text = None
    if row.tokenizer_sha256 is not None:
        text = TextPlan(row.tokenizer_sha256, row.tokenizer_vocabulary or 0, tuple(row.end_ids or ()))
    return VersionEntry(
        number=row.number,
        state=state,
        base_id=intern(row.base_model_id),
        ref=AdapterRef(AdapterDigest(row.sha256), row.prefix, files, AdapterScope(intern(row.adapter_id))),
        vocabulary=row.vocabulary,
        text=text,
        deprecated=row.deprecated_at is not None,
        created_at=_time(row.created_at),
    )


def _aliases(rows: Sequence[Row[*tuple[Any, ...]]]) -> dict[str, dict[str, AliasEntry]]:
    found: dict[str, dict[str, AliasEntry]] = {}
    for adapter_id, name, number, canary, permille in rows:
        found.setdefault(adapter_id, {})[name] = AliasEntry(intern(name), number, canary, permille)
    return found


def grants(connection: Connection, ids: Ids) -> Iterator[list[GrantEntry]]:
    """Each pair of tenant and resource once: active if a row of it is, else when one was revoked last.

    A pair has at most one active row, made after all its others ended, so later changes are of newer rows.
    """
    newest: dict[tuple[str, str], GrantEntry] = {}
    for rows in _pages(connection, queries.GRANTS, ids):
        for row in rows:
            resource = intern(row.adapter_id or row.base_model_id or "")
            entry = GrantEntry(_tenant(row.tenant_id), resource, _seconds(row.revoked_at))
            kept = newest.get((entry.tenant, resource))
            if kept is None or _grant_order(entry) > _grant_order(kept):
                newest[entry.tenant, resource] = entry
        yield []  # a page later is as good as any: the reader sees that it goes on
    found = list(newest.values())
    for at in range(0, len(found), CHUNK):
        yield found[at : at + CHUNK]


def pins(connection: Connection, pairs: Pairs) -> Iterator[list[PinEntry]]:
    last = ("", "")
    while True:
        page = {"after": last[0], "after_adapter": last[1], "most": CHUNK}
        found = connection.execute(queries.PINS.page, page) if pairs is None else _of(connection, queries.PINS, pairs)
        rows = found.all()
        yield [PinEntry(_tenant(row[0]), intern(row[1]), row.number, row.mode == "HARD") for row in rows]
        if pairs is not None or len(rows) < CHUNK:
            return
        last = rows[-1][0], rows[-1][1]


def quotas(connection: Connection, tenants: Ids) -> Iterator[list[QuotaEntry]]:
    """All of each of those tenants."""
    for rows in _pages(connection, queries.QUOTAS, tenants):
        yield [QuotaEntry(row[0], _tenant(row[1]), intern(row[2] or ""), *row[3:]) for row in rows]


def logins(connection: Connection, ids: Ids) -> Iterator[list[LoginEntry]]:
    """Of all only those that changed a short time ago."""
    for rows in _pages(connection, queries.LOGINS, ids, since=_remembered()):
        yield [LoginEntry(row.id, intern(row.role), row.disabled, _time(row.changed_at)) for row in rows]


def sessions(connection: Connection, ids: Ids) -> Iterator[list[EndedSession]]:
    """Those that ended; of all only those that did a short time ago."""
    for rows in _pages(connection, queries.SESSIONS, ids, since=_remembered()):
        yield [EndedSession(row.id, _time(row.ended_at)) for row in rows]


def _remembered() -> datetime:
    return utcnow() - timedelta(seconds=REMEMBER_S)


def _pages(connection: Connection, query: Query, ids: Ids, **more: Any) -> Iterator[Sequence[Row[*tuple[Any, ...]]]]:
    """The rows of ``ids``, or all in pages, which take ``more`` too."""
    if ids is not None:
        yield _of(connection, query, ids).all()
        return
    last = ""
    while rows := connection.execute(query.page, {"after": last, "most": CHUNK, **more}).all():
        yield rows
        if len(rows) < CHUNK:
            return
        last = rows[-1][0]


def _of(connection: Connection, query: Query, ids: Collection[Any]) -> Result[*tuple[Any, ...]]:
    return connection.execute(query.of, {"ids": list(ids)})


def _grant_order(entry: GrantEntry) -> tuple[bool, float]:
    return entry.revoked_at is None, entry.revoked_at or 0.0


def _tenant(text: str) -> TenantId:
    return TenantId(intern(text))


def _seconds(value: datetime | None) -> float | None:
    return None if value is None else _time(value)


def _time(value: datetime) -> float:
    """``queries`` reads times as the database has them; SQLite forgets the zone, which is UTC everywhere."""
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


__all__ = [
    "CHUNK",
    "adapters",
    "base_entry",
    "bases",
    "everything",
    "grants",
    "keys",
    "logins",
    "pins",
    "quotas",
    "rows_of",
    "sessions",
    "tenants",
]

"""Rows to snapshot entries: the only SQL that reads over all tenants.

Every loader yields lists of at most ``CHUNK`` entries, of the ids to load or, for None, of all. All are read by key in
pages of plain columns, so that a full load holds no more than a page of rows beside its entries and gives the event
loop a turn after each. Texts that many rows share are one object (``intern``).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from sys import intern
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Select, and_, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.adapters.manifest import AdapterFile, AdapterRef, files_digest
from lorry.adapters.plan import TextPlan
from lorry.errors import UnsupportedBase
from lorry.ids import AdapterDigest, BaseDigest, TenantId
from lorry.layers.spec import DecoderSpec
from lorry.registry import queries
from lorry.registry.changes import Kind
from lorry.registry.db.base import utcnow
from lorry.registry.db.tables import (
    Adapter,
    AdapterVersion,
    Alias,
    ApiKey,
    BaseModel,
    Grant,
    Login,
    Pin,
    Quota,
    Tenant,
    WebSession,
)
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
from lorry.registry.tables import Rows
from lorry.registry.usertokens import REMEMBER_S

CHUNK = 250
Ids = Collection[str] | None
_E = TypeVar("_E")
_Of = Callable[[Any], ColumnElement[bool]]
Pairs = Sequence[tuple[TenantId, str]] | None
"""(tenant id, adapter id)."""
_log = logging.getLogger(__name__)


async def everything(session: AsyncSession) -> AsyncIterator[Rows]:
    """The whole registry in parts."""
    async for tenant in tenants(session, None):
        yield Rows(tenants=tenant)
    async for key in keys(session, None):
        yield Rows(keys=key)
    async for base in bases(session, None):
        yield Rows(bases=base)
    async for adapter in adapters(session, None):
        yield Rows(adapters=adapter)
    async for grant in grants(session, None):
        yield Rows(grants=grant)
    async for pin in pins(session, None):
        yield Rows(pins=[(row.tenant, row.adapter, row) for row in pin])
    async for quota in quotas(session, None):
        yield Rows(quotas=[(row.tenant, row.adapter, row) for row in quota])
    async for login in logins(session, None):
        yield Rows(logins=login)
    async for ended in sessions(session, None):
        yield Rows(sessions=ended)


async def rows_of(session: AsyncSession, subjects: Mapping[Kind, Collection[str]]) -> Rows:
    """The rows that those changes are of, as they are now."""

    async def load(kind: Kind, loader: Callable[[AsyncSession, Ids], AsyncIterator[list[_E]]]) -> list[_E]:
        ids = subjects[kind]
        return [row async for part in loader(session, ids) for row in part] if ids else []

    pinned, limited = _pairs(subjects[Kind.PIN]), _pairs(subjects[Kind.QUOTA])
    pin_rows = [row async for part in pins(session, pinned) for row in part] if pinned else []
    limit_rows = [row async for part in quotas(session, {t for t, _ in limited}) for row in part] if limited else []
    found_pins = {(row.tenant, row.adapter): row for row in pin_rows}
    found_limits = {(row.tenant, row.adapter): row for row in limit_rows}
    return Rows(
        tenants=await load(Kind.TENANT, tenants),
        keys=await load(Kind.API_KEY, keys),
        bases=await load(Kind.BASE_MODEL, bases),
        adapters=await load(Kind.ADAPTER, adapters),
        grants=await load(Kind.GRANT, grants),
        pins=[(tenant, adapter, found_pins.get((tenant, adapter))) for tenant, adapter in pinned],
        quotas=[(tenant, adapter, found_limits.get((tenant, adapter))) for tenant, adapter in limited],
        logins=await load(Kind.LOGIN, logins),
        sessions=await load(Kind.SESSION, sessions),
    )


def _pairs(subjects: Collection[str]) -> list[tuple[TenantId, str]]:
    split = (subject.partition("/") for subject in subjects)
    return [(_tenant(tenant), intern(adapter)) for tenant, _, adapter in split]


async def tenants(session: AsyncSession, ids: Ids) -> AsyncIterator[list[TenantEntry]]:
    async for rows in _pages(session, queries.TENANTS, Tenant.id, ids):
        yield [TenantEntry(_tenant(row.id), intern(row.name), row.suspended) for row in rows]


async def keys(session: AsyncSession, ids: Ids) -> AsyncIterator[list[KeyEntry]]:
    async for rows in _pages(session, queries.KEYS, ApiKey.id, ids):
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


async def bases(session: AsyncSession, ids: Ids) -> AsyncIterator[list[BaseModelEntry]]:
    """Without those whose config this release cannot serve: one of them must not stop revocations of others."""
    async for rows in _pages(session, queries.BASES, BaseModel.id, ids):
        found: list[BaseModelEntry] = []
        for _, row in rows:
            try:
                found.append(base_entry(row))
            except UnsupportedBase as error:
                _log.warning("base model %s is left out of the snapshot: %s", row.name, error)
        yield found


def base_entry(row: BaseModel) -> BaseModelEntry:
    return BaseModelEntry(
        id=intern(row.id),
        name=row.name,
        base_digest=BaseDigest(row.base_sha256),
        tokenizer_sha256=row.tokenizer_sha256,
        context_tokens=row.context_tokens,
        config=row.config,
        spec=DecoderSpec.from_config(row.config),
        created_at=row.created_at.timestamp(),
    )


async def adapters(session: AsyncSession, ids: Ids) -> AsyncIterator[list[AdapterEntry]]:
    """With every version and alias of each."""
    async for rows in _pages(session, queries.ADAPTERS, Adapter.id, ids):
        wanted: _Of = partial(_within, rows[0].id, rows[-1].id) if ids is None else partial(_among, ids)
        versions = await _versions(session, wanted(AdapterVersion.adapter_id))
        aliases = await _aliases(session, wanted(Alias.adapter_id))
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


def _within(first: str, last: str, column: Any) -> ColumnElement[bool]:
    """A page of keys without the list of them, which would be a new statement each time."""
    return and_(column >= first, column <= last)


def _among(ids: Collection[str], column: Any) -> ColumnElement[bool]:
    found: ColumnElement[bool] = column.in_(ids)
    return found


async def _versions(session: AsyncSession, wanted: ColumnElement[bool]) -> dict[str, dict[int, VersionEntry]]:
    found: dict[str, dict[int, VersionEntry]] = {}
    for _, group in groupby(await session.execute(queries.VERSIONS.where(wanted)), lambda row: row[0]):
        rows = list(group)
        files = [AdapterFile(intern(r.path), r.size_bytes, r.file_sha256) for r in rows if r.path is not None]
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
        ref=AdapterRef(AdapterDigest(row.sha256), row.prefix, files),
        vocabulary=row.vocabulary,
        text=text,
        deprecated=row.deprecated_at is not None,
        created_at=row.created_at.timestamp(),
    )


async def _aliases(session: AsyncSession, wanted: ColumnElement[bool]) -> dict[str, dict[str, AliasEntry]]:
    found: dict[str, dict[str, AliasEntry]] = {}
    for adapter_id, name, number, canary, permille in await session.execute(queries.ALIASES.where(wanted)):
        found.setdefault(adapter_id, {})[name] = AliasEntry(intern(name), number, canary, permille)
    return found


async def grants(session: AsyncSession, ids: Ids) -> AsyncIterator[list[GrantEntry]]:
    """Each pair of tenant and resource once: active if a row of it is, else when one was revoked last.

    A pair has at most one active row, made after all its others ended, so later changes are of newer rows.
    """
    newest: dict[tuple[str, str], GrantEntry] = {}
    async for rows in _pages(session, queries.GRANTS, Grant.id, ids):
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


async def pins(session: AsyncSession, pairs: Pairs) -> AsyncIterator[list[PinEntry]]:
    query, key = queries.PINS, tuple_(Pin.tenant_id, Pin.adapter_id)
    last = ("", "")
    while True:
        page = query.where(key > last).order_by(Pin.tenant_id, Pin.adapter_id).limit(CHUNK)
        rows = (await session.execute(page if pairs is None else query.where(key.in_(pairs)))).all()
        yield [PinEntry(_tenant(row[0]), intern(row[1]), row.number, row.mode == "HARD") for row in rows]
        if pairs is not None or len(rows) < CHUNK:
            return
        last = rows[-1][0], rows[-1][1]


async def quotas(session: AsyncSession, tenants: Ids) -> AsyncIterator[list[QuotaEntry]]:
    """All of each of those tenants."""
    query = queries.QUOTAS if tenants is None else queries.QUOTAS.where(Quota.tenant_id.in_(tenants))
    async for rows in _pages(session, query, Quota.id, None):
        yield [QuotaEntry(row[0], _tenant(row[1]), intern(row[2] or ""), *row[3:]) for row in rows]


async def logins(session: AsyncSession, ids: Ids) -> AsyncIterator[list[LoginEntry]]:
    """Of all only those that changed a short time ago."""
    query = queries.LOGINS if ids is not None else queries.LOGINS.where(Login.changed_at >= _remembered())
    async for rows in _pages(session, query, Login.id, ids):
        yield [LoginEntry(row.id, intern(row.role), row.disabled, row.changed_at.timestamp()) for row in rows]


async def sessions(session: AsyncSession, ids: Ids) -> AsyncIterator[list[EndedSession]]:
    """Those that ended; of all only those that did a short time ago."""
    query = queries.SESSIONS if ids is not None else queries.SESSIONS.where(WebSession.ended_at >= _remembered())
    async for rows in _pages(session, query, WebSession.id, ids):
        yield [EndedSession(row.id, row.ended_at.timestamp()) for row in rows]


def _remembered() -> datetime:
    return utcnow() - timedelta(seconds=REMEMBER_S)


async def _pages(
    session: AsyncSession, query: Select[*tuple[Any, ...]], key: Any, ids: Ids
) -> AsyncIterator[Sequence[Row[*tuple[Any, ...]]]]:
    """The rows of ``ids``, or all in pages. ``key`` is unique and the query's first column."""
    if ids is not None:
        yield (await session.execute(query.where(key.in_(ids)))).all()
        return
    last = ""
    while rows := (await session.execute(query.where(key > last).order_by(key).limit(CHUNK))).all():
        yield rows
        if len(rows) < CHUNK:
            return
        last = rows[-1][0]


def _grant_order(entry: GrantEntry) -> tuple[bool, float]:
    return entry.revoked_at is None, entry.revoked_at or 0.0


def _tenant(text: str) -> TenantId:
    return TenantId(intern(text))


def _seconds(value: datetime | None) -> float | None:
    return None if value is None else value.timestamp()


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

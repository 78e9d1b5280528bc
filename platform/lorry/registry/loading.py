"""Rows to snapshot entries: the only SQL that reads over all tenants.

Every loader takes the ids to load, or None for all. The epoch is read before the rows, so what is loaded
may be newer than its epoch but never older; applying the later change again is harmless.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Select, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import joinedload, selectinload

from lorry.adapters.manifest import AdapterFile, AdapterRef, files_digest
from lorry.adapters.plan import TextPlan
from lorry.errors import UnsupportedBase
from lorry.ids import AdapterDigest, BaseDigest, TenantId
from lorry.layers.spec import DecoderSpec
from lorry.registry.db.tables import (
    Adapter,
    AdapterVersion,
    Alias,
    AliasRevision,
    ApiKey,
    BaseModel,
    Grant,
    Pin,
    Tenant,
)
from lorry.registry.entries import (
    AdapterEntry,
    BaseModelEntry,
    GrantEntry,
    KeyEntry,
    PinEntry,
    TenantEntry,
    VersionEntry,
    VersionState,
)

Ids = Collection[str] | None
_S = TypeVar("_S", bound="Select[*tuple[Any, ...]]")
_log = logging.getLogger(__name__)


async def tenants(session: AsyncSession, ids: Ids) -> list[TenantEntry]:
    rows = (await session.execute(_only(select(Tenant), Tenant.id, ids))).scalars()
    return [TenantEntry(TenantId(row.id), row.name, row.suspended) for row in rows]


async def keys(session: AsyncSession, ids: Ids) -> list[KeyEntry]:
    query = _only(select(ApiKey).options(joinedload(ApiKey.principal)), ApiKey.id, ids)
    return [
        KeyEntry(
            key_id=row.id,
            tenant=TenantId(row.tenant_id),
            principal=row.principal.name,
            role=row.principal.role,
            mac=row.mac,
            pepper_id=row.pepper_id,
            expires_at=_seconds(row.expires_at),
            revoked_at=_seconds(row.revoked_at),
        )
        for row in (await session.execute(query)).scalars()
    ]


async def bases(session: AsyncSession, ids: Ids) -> list[BaseModelEntry]:
    """Without those whose config this release cannot serve: one of them must not stop revocations of others."""
    found: list[BaseModelEntry] = []
    for row in (await session.execute(_only(select(BaseModel), BaseModel.id, ids))).scalars():
        try:
            found.append(base_entry(row))
        except UnsupportedBase as error:
            _log.warning("base model %s is left out of the snapshot: %s", row.name, error)
    return found


def base_entry(row: BaseModel) -> BaseModelEntry:
    return BaseModelEntry(
        id=row.id,
        name=row.name,
        base_digest=BaseDigest(row.base_sha256),
        tokenizer_sha256=row.tokenizer_sha256,
        context_tokens=row.context_tokens,
        config=row.config,
        spec=DecoderSpec.from_config(row.config),
    )


async def adapters(session: AsyncSession, ids: Ids) -> list[AdapterEntry]:
    """With every version and alias of each."""
    query = select(Adapter).options(
        joinedload(Adapter.tenant),
        selectinload(Adapter.versions).selectinload(AdapterVersion.files),
    )
    rows = (await session.execute(_only(query, Adapter.id, ids))).scalars().all()
    current = (
        select(Alias.adapter_id, Alias.name, AliasRevision.number)
        .join(AliasRevision, (AliasRevision.adapter_id == Alias.adapter_id) & (AliasRevision.name == Alias.name))
        .where(AliasRevision.revision == Alias.revision)
    )
    aliases: dict[str, dict[str, int]] = {}
    for adapter_id, alias, number in await session.execute(_only(current, Alias.adapter_id, ids)):
        aliases.setdefault(adapter_id, {})[alias] = number
    return [
        AdapterEntry(
            id=row.id,
            tenant=TenantId(row.tenant_id),
            tenant_name=row.tenant.name,
            name=row.name,
            versions={version.number: version_entry(version) for version in row.versions},
            aliases=aliases.get(row.id, {}),
        )
        for row in rows
    ]


def version_entry(row: AdapterVersion) -> VersionEntry:
    """``row.files`` must be loaded. A row whose files do not hash to its digest is never served."""
    files = tuple(AdapterFile(file.path, file.size_bytes, file.sha256) for file in row.files)
    state = VersionState(row.state)
    if state is VersionState.READY and files_digest(files) != row.sha256:
        _log.error("version %s: its files do not hash to its digest %s; it is not served", row.id, row.sha256)
        state = VersionState.QUARANTINED
    ref = AdapterRef(AdapterDigest(row.sha256), row.prefix, files)
    text = None
    if row.tokenizer_sha256 is not None:
        text = TextPlan(row.tokenizer_sha256, row.tokenizer_vocabulary or 0, tuple(row.end_ids or ()))
    return VersionEntry(row.number, state, row.base_model_id, ref, row.vocabulary, text)


async def grants(session: AsyncSession, ids: Ids) -> list[GrantEntry]:
    """The newest state per tenant and resource of those rows: active if any is, else when it was revoked last.

    A pair has at most one active row, made after all its others ended, so later changes are of newer rows.
    """
    query = _only(select(Grant), Grant.id, ids)
    newest: dict[tuple[str, str], GrantEntry] = {}
    for row in (await session.execute(query)).scalars():
        entry = GrantEntry(TenantId(row.tenant_id), row.adapter_id or row.base_model_id or "", _seconds(row.revoked_at))
        kept = newest.get((entry.tenant, entry.resource))
        if kept is None or _grant_order(entry) > _grant_order(kept):
            newest[entry.tenant, entry.resource] = entry
    return list(newest.values())


async def pins(session: AsyncSession, pairs: Iterable[tuple[str, str]] | None) -> list[PinEntry]:
    """``pairs`` are (tenant id, adapter id)."""
    query = select(Pin)
    if pairs is not None:
        query = query.where(tuple_(Pin.tenant_id, Pin.adapter_id).in_(list(pairs)))
    rows = (await session.execute(query)).scalars()
    return [PinEntry(TenantId(row.tenant_id), row.adapter_id, row.number) for row in rows]


def _grant_order(entry: GrantEntry) -> tuple[bool, float]:
    return entry.revoked_at is None, entry.revoked_at or 0.0


def _only(query: _S, column: Any, ids: Ids) -> _S:
    return query if ids is None else query.where(column.in_(ids))


def _seconds(value: datetime | None) -> float | None:
    return None if value is None else value.timestamp()


__all__ = ["adapters", "base_entry", "bases", "grants", "keys", "pins", "tenants", "version_entry"]

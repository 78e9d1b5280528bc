"""SQL on adapters and their versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import joinedload, selectinload

from lorry.adapters.manifest import AdapterFile
from lorry.adapters.report import Accepted
from lorry.errors import AdapterQuarantined, FailedPrecondition, VersionNotReady
from lorry.registry.authz import VerifiedTenantId, not_visible
from lorry.registry.db.base import new_id
from lorry.registry.db.tables import Adapter, AdapterFileRow, AdapterVersion, Tenant
from lorry.registry.entries import VersionState
from lorry.registry.names import VERSION_MAX
from lorry.registry.paging import PageRequest


async def find_adapter(session: AsyncSession, tenant: VerifiedTenantId, name: str) -> Adapter | None:
    query = select(Adapter).where(Adapter.tenant_id == tenant, Adapter.name == name)
    return (await session.execute(query)).scalar_one_or_none()


async def find_by_name(session: AsyncSession, tenant_name: str, name: str) -> Adapter | None:
    """Of any tenant: only for a caller that goes on to look for its own grant on it."""
    query = select(Adapter).join(Tenant, Tenant.id == Adapter.tenant_id)
    query = query.where(Tenant.name == tenant_name, Adapter.name == name)
    return (await session.execute(query)).scalar_one_or_none()


async def open_adapter(session: AsyncSession, tenant: VerifiedTenantId, name: str, *, deleted: bool = False) -> Adapter:
    """Raises ResourceNotFound, and FailedPrecondition for a deleted one unless ``deleted`` takes those too."""
    row = await find_adapter(session, tenant, name)
    if row is None:
        raise not_visible()
    if row.deleted_at is not None and not deleted:
        raise went(f"adapter: {name!r}", row)
    return row


def went(what: str, row: Adapter) -> FailedPrecondition:
    """Why nothing can be done to a deleted adapter. Once its purge has begun there is no way back."""
    if row.purge_receipt is not None:
        return FailedPrecondition(f"{what} is purged, its bytes are destroyed and its name stays taken; use another")
    return FailedPrecondition(f"{what} is deleted; undelete it first, or use another")


async def list_adapters(
    session: AsyncSession, tenant: VerifiedTenantId, page: PageRequest, *, deleted: bool = False
) -> Sequence[Adapter]:
    """``deleted``: with those."""
    query = select(Adapter).where(Adapter.tenant_id == tenant, Adapter.name > page.after)
    if not deleted:
        query = query.where(Adapter.deleted_at.is_(None))
    return (await session.execute(query.order_by(Adapter.name).limit(page.size + 1))).scalars().all()


async def insert_adapter(session: AsyncSession, tenant: VerifiedTenantId, name: str, display_name: str) -> Adapter:
    row = Adapter(id=new_id("ad"), tenant_id=tenant, name=name, display_name=display_name, last_version=0)
    session.add(row)
    await session.flush()
    return row


async def next_number(session: AsyncSession, tenant: VerifiedTenantId, adapter_id: str) -> int:
    """Takes the adapter's next version number; the row's lock makes others wait for this transaction, its deletion
    among them. Raises FailedPrecondition where that came first: a purge has to know every version."""
    step = (
        update(Adapter)
        .where(Adapter.id == adapter_id, Adapter.tenant_id == tenant, Adapter.deleted_at.is_(None))
        .values(last_version=Adapter.last_version + 1)
        .returning(Adapter.last_version)
    )
    number = (await session.execute(step)).scalar_one_or_none()
    if number is None:
        raise FailedPrecondition("adapter: it was deleted meanwhile; undelete it first, or use another")
    return number


async def insert_version(
    session: AsyncSession,
    adapter_id: str,
    number: int,
    *,
    base_model_id: str,
    sha256: str,
    prefix: str,
    files: Sequence[AdapterFile],
    rank: int,
    report: dict[str, Any],
    state: VersionState,
    state_reason: str,
    created_by: str,
    accepted: Accepted | None = None,
    source_uri: str | None = None,
) -> AdapterVersion:
    text = None if accepted is None else accepted.text
    row = AdapterVersion(
        id=new_id("av"),
        adapter_id=adapter_id,
        number=number,
        base_model_id=base_model_id,
        sha256=sha256,
        prefix=prefix,
        rank=rank,
        vocabulary=None if accepted is None else accepted.vocabulary,
        tokenizer_sha256=None if text is None else text.sha256,
        tokenizer_vocabulary=None if text is None else text.vocabulary,
        end_ids=None if text is None else list(text.end_ids),
        size_bytes=sum(file.size for file in files),
        report=report,
        created_by=created_by,
        state=state.value,
        state_reason=state_reason,
        source_uri=source_uri,
    )
    session.add(row)
    await session.flush()
    session.add_all(
        AdapterFileRow(version_id=row.id, path=file.path, size_bytes=file.size, sha256=file.sha256) for file in files
    )
    await session.flush()
    return row


async def find_version(
    session: AsyncSession, tenant: VerifiedTenantId, adapter_name: str, number: int
) -> AdapterVersion | None:
    """With its files and base."""
    query = (
        select(AdapterVersion)
        .join(Adapter, Adapter.id == AdapterVersion.adapter_id)
        .options(selectinload(AdapterVersion.files), joinedload(AdapterVersion.base))
        .where(Adapter.tenant_id == tenant, Adapter.name == adapter_name, AdapterVersion.number == number)
        .execution_options(populate_existing=True)
    )
    return (await session.execute(query)).scalar_one_or_none()


async def list_versions(session: AsyncSession, adapter_id: str, page: PageRequest) -> Sequence[AdapterVersion]:
    """Newest first, with their base."""
    query = select(AdapterVersion).options(joinedload(AdapterVersion.base))
    query = query.where(AdapterVersion.adapter_id == adapter_id)
    if (before := page.after_number()) is not None:
        query = query.where(AdapterVersion.number < before)
    return (await session.execute(query.order_by(AdapterVersion.number.desc()).limit(page.size + 1))).scalars().all()


async def require_servable(session: AsyncSession, adapter: Adapter, number: int) -> None:
    """That it is READY or DEPRECATED. Raises ResourceNotFound, AdapterQuarantined or VersionNotReady."""
    if not 0 < number <= VERSION_MAX:
        raise not_visible()
    query = select(AdapterVersion.state, AdapterVersion.purged_at)
    query = query.where(AdapterVersion.adapter_id == adapter.id, AdapterVersion.number == number)
    row = (await session.execute(query)).one_or_none()
    if row is None:
        raise not_visible()
    state, purged_at = row
    if purged_at is not None:
        raise VersionNotReady(f"version: {number} is purged, its bytes are destroyed; use another version")
    if state == VersionState.QUARANTINED:
        raise AdapterQuarantined(f"version: {number} is quarantined; use another version")
    if state != VersionState.READY:
        raise VersionNotReady(f"version: {number} is {state}; use a READY version")


__all__ = [
    "find_adapter",
    "find_by_name",
    "find_version",
    "insert_adapter",
    "insert_version",
    "list_adapters",
    "list_versions",
    "next_number",
    "open_adapter",
    "require_servable",
    "went",
]

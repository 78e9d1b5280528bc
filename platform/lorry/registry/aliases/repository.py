"""SQL on aliases, their revisions and rollouts. What an alias is, is its newest revision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from lorry.registry.authz import VerifiedTenantId, not_visible
from lorry.registry.db.base import new_id, utcnow
from lorry.registry.db.tables import Adapter, Alias, AliasRevision, Rollout
from lorry.registry.paging import PageRequest


@dataclass(frozen=True, slots=True)
class Target:
    """What a revision says, as its columns do."""

    number: int
    canary_number: int | None = None
    canary_permille: int = 0
    deleted: bool = False
    origin: int | None = None


@dataclass(frozen=True, slots=True)
class SeenRollout:
    """``permille`` is the canary's part now, or when it ended; 0 where the release before ended it."""

    row: Rollout
    permille: int


async def lock_adapter(session: AsyncSession, tenant: VerifiedTenantId, name: str) -> Adapter:
    """The adapter, whose lock orders all changes of its aliases, first ones too. Raises ResourceNotFound."""
    query = select(Adapter).where(Adapter.tenant_id == tenant, Adapter.name == name).with_for_update(key_share=True)
    row = (await session.execute(query.execution_options(populate_existing=True))).scalar_one_or_none()
    if row is None:
        raise not_visible()
    return row


async def find(session: AsyncSession, tenant: VerifiedTenantId, adapter_id: str, name: str) -> AliasRevision | None:
    """The newest revision, which may be a deletion."""
    query = (
        select(AliasRevision)
        .join(Alias, newest_revision())
        .where(Alias.adapter_id == adapter_id, Alias.name == name, _of(tenant, Alias.adapter_id))
    )
    return (await session.execute(query)).scalar_one_or_none()


async def find_revision(
    session: AsyncSession, tenant: VerifiedTenantId, adapter_id: str, name: str, revision: int
) -> AliasRevision | None:
    query = select(AliasRevision).where(
        AliasRevision.adapter_id == adapter_id,
        AliasRevision.name == name,
        AliasRevision.revision == revision,
        _of(tenant, AliasRevision.adapter_id),
    )
    return (await session.execute(query)).scalar_one_or_none()


async def list_current(
    session: AsyncSession, tenant: VerifiedTenantId, adapter_id: str, page: PageRequest
) -> Sequence[AliasRevision]:
    """By name, without deleted ones."""
    query = (
        select(AliasRevision)
        .join(Alias, newest_revision())
        .where(Alias.adapter_id == adapter_id, Alias.name > page.after, _of(tenant, Alias.adapter_id))
        .where(AliasRevision.deleted.is_(False))
    )
    return (await session.execute(query.order_by(Alias.name).limit(page.size + 1))).scalars().all()


async def list_revisions(
    session: AsyncSession, tenant: VerifiedTenantId, adapter_id: str, name: str, page: PageRequest
) -> Sequence[AliasRevision]:
    """Newest first."""
    query = select(AliasRevision).where(
        AliasRevision.adapter_id == adapter_id, AliasRevision.name == name, _of(tenant, AliasRevision.adapter_id)
    )
    if (before := page.after_number()) is not None:
        query = query.where(AliasRevision.revision < before)
    return (await session.execute(query.order_by(AliasRevision.revision.desc()).limit(page.size + 1))).scalars().all()


async def append(
    session: AsyncSession,
    tenant: VerifiedTenantId,
    adapter: Adapter,
    name: str,
    before: AliasRevision | None,
    target: Target,
    created_by: str,
) -> AliasRevision:
    """The alias's next revision. ``before`` is its newest one, read under the lock of ``adapter``, which is the
    tenant's; None makes the alias."""
    if adapter.tenant_id != tenant:
        raise not_visible()
    revision = 1 if before is None else before.revision + 1
    if before is None:
        session.add(Alias(adapter_id=adapter.id, name=name, revision=revision))
    else:
        step = update(Alias).where(Alias.adapter_id == adapter.id, Alias.name == name)
        await session.execute(step.values(revision=revision))
    await session.flush()
    row = AliasRevision(
        adapter_id=adapter.id,
        name=name,
        revision=revision,
        number=target.number,
        canary_number=target.canary_number,
        canary_permille=target.canary_permille,
        deleted=target.deleted,
        origin=target.origin,
        created_by=created_by,
    )
    session.add(row)
    await session.flush()
    return row


async def start_rollout(
    session: AsyncSession, tenant: VerifiedTenantId, revision: AliasRevision, created_by: str
) -> None:
    """Of the canary that ``revision`` begins."""
    assert revision.canary_number is not None
    row = Rollout(
        id=new_id("ro"),
        adapter_id=revision.adapter_id,
        name=revision.name,
        number=revision.number,
        canary_number=revision.canary_number,
        state="RUNNING",
        created_by=created_by,
    )
    session.add(row)
    await session.flush()


async def end_rollout(session: AsyncSession, tenant: VerifiedTenantId, revision: AliasRevision, state: str) -> None:
    """The one that runs on the alias, if one does. ``revision`` is its newest one, which has the canary."""
    step = update(Rollout).where(
        Rollout.adapter_id == revision.adapter_id,
        Rollout.name == revision.name,
        Rollout.ended_at.is_(None),
        _of(tenant, Rollout.adapter_id),
    )
    step = step.values(state=state, ended_at=utcnow(), canary_permille=revision.canary_permille)
    await session.execute(step.execution_options(synchronize_session=False))


async def list_rollouts(
    session: AsyncSession, tenant: VerifiedTenantId, adapter_id: str, name: str, page: PageRequest
) -> Sequence[SeenRollout]:
    """Newest first; of one alias where ``name`` is not empty."""
    query = (
        select(Rollout, AliasRevision.canary_permille)
        .join(Alias, (Alias.adapter_id == Rollout.adapter_id) & (Alias.name == Rollout.name))
        .join(AliasRevision, newest_revision())
        .where(Rollout.adapter_id == adapter_id, _of(tenant, Rollout.adapter_id))
    )
    if name:
        query = query.where(Rollout.name == name)
    if page.after:
        query = query.where(Rollout.id < page.after)
    found = await session.execute(query.order_by(Rollout.id.desc()).limit(page.size + 1))
    return [SeenRollout(row, now if row.ended_at is None else row.canary_permille or 0) for row, now in found]


def newest_revision() -> ColumnElement[bool]:
    """Joins an alias with what it is now."""
    return (
        (AliasRevision.adapter_id == Alias.adapter_id)
        & (AliasRevision.name == Alias.name)
        & (AliasRevision.revision == Alias.revision)
    )


def _of(tenant: VerifiedTenantId, adapter_id: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    return adapter_id.in_(select(Adapter.id).where(Adapter.tenant_id == tenant))


__all__ = [
    "SeenRollout",
    "Target",
    "append",
    "end_rollout",
    "find",
    "find_revision",
    "list_current",
    "list_revisions",
    "list_rollouts",
    "lock_adapter",
    "newest_revision",
    "start_rollout",
]

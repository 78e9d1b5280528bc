"""SQL that writes the ledger, its sums and when keys were used.

The ledger is append-only, and writing a ledger id again changes nothing. Sums follow the rows that were really
inserted, in the same transaction. All writers take their locks in one order: ledger ids, groups, keys, quotas, each
ascending.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, delete, func, select, text, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.conflicts import insert_into
from lorry.registry.db.tables import ApiKey, BaseModel, KeyUse, UsageEvent, UsageRollup
from lorry.registry.usage.events import Usage
from lorry.registry.usage.sums import Group, Sums

_ROLLUP: Any = UsageRollup.__table__
_GROUP = [_ROLLUP.c[name] for name in Group._fields]


async def append(session: AsyncSession, rows: Iterable[Usage]) -> list[Usage]:
    """Those that were not there and now are. Of equal ledger ids among ``rows`` the first is meant."""
    wanted: dict[str, Usage] = {}
    for row in rows:
        wanted.setdefault(row.ledger_id, row)
    values = [_columns(wanted[ledger_id]) for ledger_id in sorted(wanted)]
    step = insert_into(session, UsageEvent).on_conflict_do_nothing(index_elements=["ledger_id"])
    made = (await session.execute(step.returning(UsageEvent.ledger_id), values)).scalars().all()
    return [wanted[ledger_id] for ledger_id in made]


async def base_names(session: AsyncSession, digests: Collection[str]) -> dict[str, str]:
    """``models/{base}`` of each digest: where several have it the one that was registered first, which stays so."""
    if not digests:
        return {}
    query = select(BaseModel.base_sha256, BaseModel.name).where(BaseModel.base_sha256.in_(sorted(digests)))
    found: dict[str, str] = {}
    for row in await session.execute(query.order_by(BaseModel.created_at, BaseModel.id)):
        found.setdefault(row.base_sha256, f"models/{row.name}")
    return found


async def add_sums(session: AsyncSession, sums: Mapping[Group, Sums]) -> None:
    """Rows that are new are inserted as they are. The others are locked and added to."""
    values = [group._asdict() | asdict(sums[group]) for group in sorted(sums)]
    step = insert_into(session, UsageRollup).on_conflict_do_nothing().returning(*_GROUP)
    made = {_group(row) for row in await session.execute(step, values)}
    there = sorted(group for group in sums if group not in made)
    if not there:
        return
    query = select(_ROLLUP).where(tuple_(*_GROUP).in_(there)).order_by(*_GROUP).with_for_update()
    changed = []
    for row in (await session.execute(query)).mappings():
        group = _group(row)
        sum_now = Sums(**{name: row[name] for name in Sums.__dataclass_fields__}).plus(sums[group])
        changed.append({f"_{name}": value for name, value in group._asdict().items()} | asdict(sum_now))
    where = [column == bindparam(f"_{column.name}") for column in _GROUP]
    await session.execute(
        update(_ROLLUP).where(*where).values({name: bindparam(name) for name in Sums.__dataclass_fields__}), changed
    )


async def uneven(session: AsyncSession) -> Sequence[str]:
    """Ids of tenants whose sums have not as many requests as their ledger has rows, as of one moment."""
    rows = select(UsageEvent.tenant_id, func.count().label("rows")).group_by(UsageEvent.tenant_id).subquery()
    sums = select(UsageRollup.tenant_id, func.sum(UsageRollup.requests).label("requests"))
    summed = sums.group_by(UsageRollup.tenant_id).subquery()
    query = select(rows.c.tenant_id).outerjoin(summed, summed.c.tenant_id == rows.c.tenant_id)
    query = query.where(rows.c.rows != func.coalesce(summed.c.requests, 0)).order_by(rows.c.tenant_id)
    return (await session.execute(query)).scalars().all()


async def drop_sums(session: AsyncSession, tenant: VerifiedTenantId) -> None:
    """All of a tenant's. Whoever would add to any waits until this transaction is over."""
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(text("LOCK TABLE usage_rollup IN SHARE ROW EXCLUSIVE MODE"))
    await session.execute(delete(UsageRollup).where(UsageRollup.tenant_id == tenant))


async def touch_keys(session: AsyncSession, used: Mapping[str, datetime]) -> None:
    """``used``: when each key was used last. Ids of no key are passed over, older times change nothing."""
    step = insert_into(session, KeyUse).from_select(
        ["key_id", "used_at"],
        select(ApiKey.id, bindparam("at", type_=KeyUse.used_at.type)).where(ApiKey.id == bindparam("key")),
    )
    step = step.on_conflict_do_update(
        index_elements=["key_id"],
        set_={"used_at": step.excluded.used_at},
        where=KeyUse.used_at < step.excluded.used_at,
    )
    connection = await session.connection()
    await connection.execute(step, [{"key": key, "at": used[key]} for key in sorted(used)])


async def totals(session: AsyncSession, tenant: VerifiedTenantId) -> tuple[int, int, int]:
    """(requests, prompt tokens, output tokens) of a tenant since ever."""
    query = select(
        func.count(),
        func.coalesce(func.sum(UsageEvent.prompt_tokens), 0),
        func.coalesce(func.sum(UsageEvent.output_tokens), 0),
    ).where(UsageEvent.tenant_id == tenant)
    requests, prompt, output = (await session.execute(query)).one()
    return int(requests), int(prompt), int(output)


async def export_page(
    session: AsyncSession,
    tenant: VerifiedTenantId,
    start: datetime | None,
    end: datetime | None,
    after: tuple[datetime, str] | None,
    limit: int,
) -> Sequence[UsageEvent]:
    """Rows that ended in [start, end), in the order of (ended_at, ledger_id), behind ``after``."""
    query = select(UsageEvent).where(UsageEvent.tenant_id == tenant)
    if start is not None:
        query = query.where(UsageEvent.ended_at >= start)
    if end is not None:
        query = query.where(UsageEvent.ended_at < end)
    if after is not None:
        query = query.where(tuple_(UsageEvent.ended_at, UsageEvent.ledger_id) > tuple_(*after))
    query = query.order_by(UsageEvent.ended_at, UsageEvent.ledger_id).limit(limit)
    return (await session.execute(query)).scalars().all()


def _columns(row: Usage) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if name != "charges"}


def _group(row: Any) -> Group:
    mapping = getattr(row, "_mapping", row)
    return Group(*(mapping[name] for name in Group._fields))


__all__ = ["add_sums", "append", "base_names", "drop_sums", "export_page", "totals", "touch_keys", "uneven"]

"""SQL that writes and adds up what has no row in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, String, func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.conflicts import insert_into
from lorry.registry.db.tables import Adapter, OutcomeRollup, Tenant
from lorry.registry.names import AdapterName, parse_model
from lorry.registry.usage.queries import Dimension, Query, text_of
from lorry.registry.usage.sums import hour_of

HOURS_MAX = timedelta(days=31)
"""Of a longer period nothing is told by the hour: an answer has them all."""
_KEY = ["tenant_id", "hour", "adapter_id", "reason", "writer"]


class UnbilledSum(NamedTuple):
    """``time``: RFC 3339, the beginning of the day or the hour; "" where not by those."""

    time: str
    reason: str
    requests: int


async def put_outcomes(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> None:
    """Rows that are there get the larger count of the two."""
    step = insert_into(session, OutcomeRollup)
    step = step.on_conflict_do_update(
        index_elements=_KEY,
        set_={"requests": step.excluded.requests},
        where=OutcomeRollup.requests < step.excluded.requests,
    )
    await (await session.connection()).execute(step, rows)


async def unbilled(session: AsyncSession, tenant: VerifiedTenantId, query: Query) -> list[UnbilledSum]:
    """Of the hours that ``query`` touches, by reason, and by day or hour where it is grouped by those; ascending."""
    time = _time(query, session.get_bind().dialect.name == "postgresql")
    grouped = select(time.label("tick"), OutcomeRollup.reason, func.sum(OutcomeRollup.requests))
    grouped = grouped.where(
        OutcomeRollup.tenant_id == tenant,
        OutcomeRollup.hour >= hour_of(query.start),
        OutcomeRollup.hour < query.end,
    )
    if query.model:
        found = parse_model(query.model)
        if not isinstance(found, AdapterName) or found.bare != query.model:  # a base's rows have no adapter's id
            return []
        named = select(Adapter.id).join(Tenant, Tenant.id == Adapter.tenant_id)
        named = named.where(Tenant.name == found.tenant, Adapter.name == found.adapter)
        grouped = grouped.where(OutcomeRollup.adapter_id.in_(named))
    grouped = grouped.group_by("tick", OutcomeRollup.reason).order_by("tick", OutcomeRollup.reason)
    rows = (await session.execute(grouped)).all()
    kind = _dimension(query)
    return [
        UnbilledSum("" if kind is None else str(text_of(kind, time)), reason, int(requests))
        for time, reason, requests in rows
    ]


def _dimension(query: Query) -> Dimension | None:
    if Dimension.DAY in query.dimensions:
        return Dimension.DAY
    if Dimension.HOUR in query.dimensions and query.end - query.start <= HOURS_MAX:
        return Dimension.HOUR
    return None


def _time(query: Query, postgresql: bool) -> ColumnElement[Any]:
    match _dimension(query):
        case Dimension.HOUR:
            return OutcomeRollup.hour.expression
        case Dimension.DAY if postgresql:
            return func.to_char(func.timezone("UTC", OutcomeRollup.hour), "YYYY-MM-DD", type_=String)
        case Dimension.DAY:
            return func.strftime("%Y-%m-%d", OutcomeRollup.hour, type_=String)
        case _:
            return literal("", String)


__all__ = ["HOURS_MAX", "UnbilledSum", "put_outcomes", "unbilled"]

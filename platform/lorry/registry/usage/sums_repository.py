"""SQL that reads the sums: the database groups, adds up and pages them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, String, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.tables import UsageRollup
from lorry.registry.usage import minutes_repository as minutes
from lorry.registry.usage.buckets import DURATION_S, INTER_TOKEN_S, TTFT_S
from lorry.registry.usage.queries import Dimension, Query, UsageSum, text_of, value_of
from lorry.registry.usage.sums import Sums

_NUMBERS = ("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens")
_HISTOGRAMS = (("ttft", TTFT_S), ("inter_token", INTER_TOKEN_S), ("duration", DURATION_S))


async def sums(session: AsyncSession, tenant: VerifiedTenantId, query: Query) -> list[UsageSum]:
    """Ascending by group, at most one more than ``query.size``. No group is without requests."""
    postgresql = session.get_bind().dialect.name == "postgresql"
    made = minutes.chosen if Dimension.MINUTE in query.dimensions else _chosen
    chosen, expressions, names = made(tenant, query, postgresql)
    if query.after is not None:
        values = [value_of(dimension, text) for dimension, text in zip(query.dimensions, query.after, strict=True)]
        chosen = chosen.where(tuple_(*expressions) > tuple_(*values))
    chosen = chosen.group_by(*names).order_by(*names).limit(query.size + 1)
    found = []
    for row in await session.execute(chosen):
        group = tuple(text_of(dimension, value) for dimension, value in zip(query.dimensions, row, strict=False))
        numbers = [int(value or 0) for value in row[len(names) :]]
        if numbers[0]:
            found.append(UsageSum(group, _read(numbers)))
    return found


def _chosen(
    tenant: VerifiedTenantId, query: Query, postgresql: bool
) -> tuple[Select[Any], list[ColumnElement[Any]], list[str]]:
    """The statement without its groups, what it is grouped by, and the names of that."""
    expressions = [_expression(dimension, postgresql) for dimension in query.dimensions]
    names = [f"group_{at}" for at in range(len(expressions))]
    chosen = select(*(one.label(name) for one, name in zip(expressions, names, strict=True)), *_sums())
    chosen = chosen.where(
        UsageRollup.tenant_id == tenant, UsageRollup.hour >= query.start, UsageRollup.hour < query.end
    )
    if query.model:
        chosen = chosen.where(UsageRollup.model == query.model)
    return chosen, expressions, names


def _sums() -> list[ColumnElement[Any]]:
    found: list[ColumnElement[Any]] = [func.sum(getattr(UsageRollup, name)) for name in _NUMBERS]
    for name, bounds in _HISTOGRAMS:
        column = getattr(UsageRollup, name)
        found += [func.sum(column[at].as_integer()) for at in range(len(bounds) + 1)]
    return found


def _read(values: list[int]) -> Sums:
    requests, prompt, cached, output, *rest = values
    histograms = []
    for _, bounds in _HISTOGRAMS:
        histograms.append(rest[: len(bounds) + 1])
        rest = rest[len(bounds) + 1 :]
    ttft, inter_token, duration = histograms
    return Sums(requests, prompt, cached, output, ttft, inter_token, duration)


def _expression(dimension: Dimension, postgresql: bool) -> ColumnElement[Any]:
    match dimension:
        case Dimension.HOUR:
            return UsageRollup.hour.expression
        case Dimension.DAY if postgresql:
            return func.to_char(func.timezone("UTC", UsageRollup.hour), "YYYY-MM-DD", type_=String)
        case Dimension.DAY:
            return func.strftime("%Y-%m-%d", UsageRollup.hour, type_=String)
        case Dimension.MODEL:
            return UsageRollup.model.expression
        case Dimension.VERSION:
            return UsageRollup.version.expression
        case Dimension.KEY:
            return UsageRollup.key_id.expression
        case Dimension.OUTCOME:
            return UsageRollup.outcome.expression
        case Dimension.MINUTE:
            raise AssertionError("sums are by the hour")


__all__ = ["sums"]

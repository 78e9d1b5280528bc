"""SQL that adds up the ledger's own rows by the minute: of a short while, since each row is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Float, Select, String, case, extract, func, select

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.tables import UsageEvent
from lorry.registry.usage.buckets import DURATION_S, INTER_TOKEN_S, TTFT_S
from lorry.registry.usage.queries import Dimension, Query

_DAY_S = 86400.0


def chosen(
    tenant: VerifiedTenantId, query: Query, postgresql: bool
) -> tuple[Select[Any], list[ColumnElement[Any]], list[str]]:
    """As ``sums_repository`` makes its own. The sums are those that ``lorry.registry.usage.sums`` makes of the same
    rows."""
    expressions = [
        _minute(postgresql) if dimension is Dimension.MINUTE else UsageEvent.outcome.expression
        for dimension in query.dimensions
    ]
    names = [f"group_{at}" for at in range(len(expressions))]
    statement = select(*(one.label(name) for one, name in zip(expressions, names, strict=True)), *_sums(postgresql))
    statement = statement.where(
        UsageEvent.tenant_id == tenant, UsageEvent.ended_at >= query.start, UsageEvent.ended_at < query.end
    )
    return statement, expressions, names


def _minute(postgresql: bool) -> ColumnElement[Any]:
    if postgresql:
        return func.to_char(func.timezone("UTC", UsageEvent.ended_at), 'YYYY-MM-DD"T"HH24:MI":00Z"', type_=String)
    return func.strftime("%Y-%m-%dT%H:%M:00Z", UsageEvent.ended_at, type_=String)


def _sums(postgresql: bool) -> list[ColumnElement[Any]]:
    row = UsageEvent
    between = case((row.output_tokens > 1, row.decode_s / (row.output_tokens - 1)), else_=None)
    took: ColumnElement[Any]
    if postgresql:
        took = extract("epoch", row.ended_at - row.started_at)
    else:
        took = (func.julianday(row.ended_at, type_=Float) - func.julianday(row.started_at, type_=Float)) * _DAY_S
    return [
        func.count(),
        func.sum(row.prompt_tokens),
        func.sum(row.cached_prompt_tokens),
        func.sum(row.output_tokens),
        *_histogram(row.ttft_s.expression, TTFT_S),
        *_histogram(between, INTER_TOKEN_S),
        *_histogram(took, DURATION_S),
    ]


def _histogram(value: ColumnElement[Any], bounds: Sequence[float]) -> list[ColumnElement[Any]]:
    """As ``buckets.bucket_of``: a bound is its own bucket's."""
    found: list[ColumnElement[Any]] = []
    for at in range(len(bounds) + 1):
        inside = value <= bounds[at] if at < len(bounds) else value > bounds[-1]
        if 0 < at < len(bounds):
            inside = inside & (value > bounds[at - 1])
        found.append(func.sum(case((inside, 1), else_=0)))
    return found


__all__ = ["chosen"]

"""Sums of usage by dimensions: what may be asked for, and where a page goes on. No SQL."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from lorry.errors import InvalidRequest
from lorry.registry.paging import bad_token
from lorry.registry.usage.sums import Sums, hour_of

RANGE_MAX = timedelta(days=400)
MINUTES_MAX = timedelta(hours=2)
MODEL_MAX = 200
_TOKEN_MAX = 2048


class Dimension(StrEnum):
    """What sums are made for each of. Days and hours are UTC."""

    DAY = "day"
    HOUR = "hour"
    MODEL = "model"
    VERSION = "version"
    KEY = "key"
    OUTCOME = "outcome"
    MINUTE = "minute"


@dataclass(frozen=True, slots=True)
class Query:
    """Hours (minutes, where grouped by those) in [start, end), grouped by ``dimensions`` in their order, behind the
    group ``after``. ``model``: of this one alone; "" is of all."""

    start: datetime
    end: datetime
    dimensions: tuple[Dimension, ...]
    size: int
    after: tuple[str | int, ...] | None = None
    model: str = ""

    @classmethod
    def of(
        cls,
        start: datetime | None,
        end: datetime | None,
        dimensions: Sequence[Dimension],
        page_size: int,
        page_token: str,
        model: str = "",
    ) -> Query:
        """Raises InvalidRequest. ``page_size`` is of PageRequest's making."""
        if start is None or end is None:
            missing = "start_time" if start is None else "end_time"
            raise InvalidRequest.field(missing, "is missing; send the hours to add up")
        kinds = tuple(dimensions)
        if Dimension.MINUTE in kinds:
            return _by_minute(start, end, kinds, page_size, page_token, model)
        first, last = hour_of(start), hour_of(end)
        if not first < last:
            raise InvalidRequest.field(
                "end_time", f"{end.isoformat()} leaves no whole hour after start_time; its own hour does not count"
            )
        if last - first > RANGE_MAX:
            raise InvalidRequest.field(
                "end_time", f"is {(last - first).days} days after start_time; ask for at most 400"
            )
        if len(set(kinds)) != len(kinds):
            raise InvalidRequest.field("group_by", f"{', '.join(kinds)}: name each dimension once")
        if Dimension.DAY in kinds and Dimension.HOUR in kinds:
            raise InvalidRequest.field("group_by", "an hour is of one day already; name day or hour")
        if len(model) > MODEL_MAX or "\0" in model:
            raise InvalidRequest.field("model", "is no name; use `tenants/{t}/adapters/{a}` or `models/{base}`")
        return cls(first, last, kinds, page_size, _read_token(page_token, kinds), model)

    def token_after(self, sums: UsageSum) -> str:
        return base64.urlsafe_b64encode(json.dumps(sums.group).encode()).decode()


def _by_minute(
    start: datetime, end: datetime, kinds: tuple[Dimension, ...], page_size: int, page_token: str, model: str
) -> Query:
    if model or len(set(kinds)) != len(kinds) or set(kinds) - {Dimension.MINUTE, Dimension.OUTCOME}:
        raise InvalidRequest.field("group_by", "minutes go with outcomes alone, of all models; ask by the hour")
    first, last = minute_of(start), minute_of(end)
    if not first < last:
        raise InvalidRequest.field("end_time", f"{end.isoformat()} leaves no whole minute after start_time")
    if last - first > MINUTES_MAX:
        raise InvalidRequest.field("end_time", f"is {last - first} after start_time; by the minute ask for 2 hours")
    return Query(first, last, kinds, page_size, _read_token(page_token, kinds))


def minute_of(time: datetime) -> datetime:
    """The beginning of its minute, UTC."""
    return time.astimezone(UTC).replace(second=0, microsecond=0)


@dataclass(frozen=True, slots=True)
class UsageSum:
    """``group``: a value for each dimension; times are RFC 3339."""

    group: tuple[str | int, ...]
    sums: Sums


def text_of(dimension: Dimension, value: Any) -> str | int:
    if dimension is Dimension.HOUR:
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    if dimension is Dimension.DAY:
        return f"{value}T00:00:00Z"
    return int(value) if dimension is Dimension.VERSION else str(value)


def value_of(dimension: Dimension, text: str | int) -> Any:
    """The inverse of ``text_of``. Raises ValueError."""
    if dimension is Dimension.VERSION:
        if not isinstance(text, int) or not 0 <= text < 1 << 31:
            raise ValueError
        return text
    if not isinstance(text, str) or len(text) > MODEL_MAX or "\0" in text:
        raise ValueError
    if dimension is Dimension.HOUR:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    if dimension is Dimension.MINUTE:
        return f"{datetime.strptime(text, '%Y-%m-%dT%H:%M:00Z'):%Y-%m-%dT%H:%M:00Z}"
    if dimension is Dimension.DAY:
        return f"{datetime.strptime(text, '%Y-%m-%dT00:00:00Z'):%Y-%m-%d}"
    return text


def _read_token(token: str, dimensions: tuple[Dimension, ...]) -> tuple[str | int, ...] | None:
    if not token:
        return None
    try:
        if len(token) > _TOKEN_MAX:
            raise ValueError
        found = json.loads(base64.b64decode(token.encode(), altchars=b"-_", validate=True))
        if not isinstance(found, list) or not found or len(found) != len(dimensions):
            raise ValueError
        for dimension, text in zip(dimensions, found, strict=True):
            value_of(dimension, text)
    except (ValueError, binascii.Error, RecursionError):
        raise bad_token() from None
    return tuple(found)


__all__ = [
    "MINUTES_MAX", "MODEL_MAX", "RANGE_MAX", "Dimension", "Query", "UsageSum", "minute_of", "text_of", "value_of",
]  # fmt: skip

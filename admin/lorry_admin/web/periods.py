"""The spans of time that usage is shown for. The registry adds up by whole hours, so a span is hours: the present one
and so many before it. The last hour alone is the ledger's own rows, by whole minutes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lorry.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Period:
    """``by``: ``minute``, ``hour`` or ``day``, what one bar is."""

    word: str
    label: str
    hours: int
    by: str

    @property
    def step(self) -> timedelta:
        return timedelta(**{f"{self.by}s": 1})


PERIODS = (
    Period("1h", "1 hour", 1, "minute"),
    Period("6h", "6 hours", 6, "hour"),
    Period("24h", "24 hours", 24, "hour"),
    Period("7d", "7 days", 7 * 24, "day"),
    Period("30d", "30 days", 30 * 24, "day"),
)
DEFAULT = "24h"


@dataclass(frozen=True, slots=True)
class Span:
    """``start`` counts, ``end`` does not; ``ticks`` are the beginnings of its bars."""

    period: Period
    start: datetime
    end: datetime
    ticks: tuple[datetime, ...]


def period_of(word: str) -> Period:
    """Raises InvalidRequest."""
    for period in PERIODS:
        if period.word == (word or DEFAULT):
            return period
    raise InvalidRequest.field("period", f"{word[:20]!r}; use one of {', '.join(one.word for one in PERIODS)}")


def span_of(period: Period, now: float) -> Span:
    minute = datetime.fromtimestamp(now, UTC).replace(second=0, microsecond=0)
    if period.by == "minute":
        count = 60 * period.hours + 1
        start = minute - (count - 1) * period.step
        return Span(period, start, minute + period.step, tuple(start + i * period.step for i in range(count)))
    hour = minute.replace(minute=0)
    end = hour + timedelta(hours=1)
    if period.by == "hour":
        start = hour - timedelta(hours=period.hours)
        count = period.hours + 1
    else:
        days = period.hours // 24
        start = hour.replace(hour=0) - timedelta(days=days - 1)
        count = days
    return Span(period, start, end, tuple(start + i * period.step for i in range(count)))


__all__ = ["DEFAULT", "PERIODS", "Period", "Span", "period_of", "span_of"]

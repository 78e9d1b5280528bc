"""Calendar months, UTC, as ``2026-11``."""

from __future__ import annotations

from datetime import UTC, datetime


def month_of(now: float) -> str:
    """``now``: Unix seconds."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m")


def bounds_of(month: str) -> tuple[datetime, datetime]:
    """Its first moment, and the one after its last."""
    start = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    return start, start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)


__all__ = ["bounds_of", "month_of"]

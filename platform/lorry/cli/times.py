"""Times and spans as people write them. For argparse."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

_SECONDS: Mapping[str, int] = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SPAN = re.compile(r"([0-9]{1,9})([smhd])")


def span(text: str) -> float:
    """Seconds: ``90s``, ``15m``, ``24h``, ``30d``; a bare number is seconds."""
    found = _SPAN.fullmatch(text if not text.isdecimal() else f"{text}s")
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no span of time; write 90s, 15m, 24h or 30d")
    return float(int(found[1]) * _SECONDS[found[2]])


def moment(text: str) -> datetime:
    """``2026-11-01``, ``2026-11-01T10:00`` (UTC, or with an offset), or so long ago: ``7d``, ``24h``."""
    if _SPAN.fullmatch(text):
        return now() - timedelta(seconds=span(text))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time; write 2026-11-01, 2026-11-01T10:00Z, or 7d for so long ago"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def moment_ahead(text: str) -> datetime:
    """As ``moment``, but a span is so long from now."""
    return now() + timedelta(seconds=span(text)) if _SPAN.fullmatch(text) else moment(text)


def now() -> datetime:
    return datetime.now(UTC)


__all__ = ["moment", "moment_ahead", "now", "span"]

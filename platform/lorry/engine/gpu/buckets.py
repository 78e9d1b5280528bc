"""For how many rows a decode step is captured: a step runs in the smallest bucket that holds it. No torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_SMALL = (1, 2, 4)
_STEPS = ((64, 8), (256, 16), (1 << 30, 32))
"""(up to, multiple of): from 16 rows on a step is at most half as large again as it need be, from 64 on a quarter."""


def decode_buckets(max_rows: int) -> tuple[int, ...]:
    """Ascending; the last is ``max_rows``."""
    found = [rows for rows in _SMALL if rows < max_rows]
    rows = 0
    for most, step in _STEPS:
        while rows < most and rows + step < max_rows:
            rows += step
            found.append(rows)
    return (*found, max_rows)


def bucket_of(buckets: Sequence[int], rows: int) -> int | None:
    """The smallest that holds ``rows``, None where none does."""
    at = bisect_left(buckets, rows)
    return buckets[at] if at < len(buckets) else None


__all__ = ["bucket_of", "decode_buckets"]

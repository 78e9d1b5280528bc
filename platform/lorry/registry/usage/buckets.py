"""Bounds of the latency histograms, stated once for rollups and metrics. Pure.

A rollup row keeps counts alone, so bounds are final: other ones are other columns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds to the first token."""
INTER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
"""Seconds between tokens, a request's mean."""
DURATION_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Seconds of a whole request."""


def bucket_of(bounds: Sequence[float], seconds: float) -> int:
    """The bucket that counts ``seconds``: the first whose bound is not below it, or the last, which has none."""
    return bisect_left(bounds, seconds)


def empty(bounds: Sequence[float]) -> list[int]:
    """Counts of no request."""
    return [0] * (len(bounds) + 1)


__all__ = ["DURATION_S", "INTER_TOKEN_S", "TTFT_S", "bucket_of", "empty"]

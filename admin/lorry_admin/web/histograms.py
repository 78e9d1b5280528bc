"""Quantiles of latency histograms. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lorry.api.v1 import tenant_admin_pb2 as pb

QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds; None where nothing was counted. ``over``: the p99 lies beyond the last bound, so it is at least that."""

    p50: float | None
    p95: float | None
    p99: float | None
    over: bool = False


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts`` has one more than ``bounds`` (upper ones, ascending)."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    def __add__(self, other: Histogram) -> Histogram:
        if not self.bounds or not other.bounds:
            return self if self.bounds else other
        if self.bounds != other.bounds:
            raise ValueError("histograms of other bounds do not add up")
        return Histogram(self.bounds, tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    @property
    def total(self) -> int:
        return sum(self.counts)

    def quantile(self, part: float) -> float | None:
        """Evenly spread within a bucket; the last bound for what lies beyond it. None where nothing was counted."""
        wanted, seen = part * self.total, 0
        if not self.total:
            return None
        for index, count in enumerate(self.counts[:-1]):
            if count and seen + count >= wanted:
                low = self.bounds[index - 1] if index else 0.0
                return low + (self.bounds[index] - low) * (wanted - seen) / count
            seen += count
        return self.bounds[-1]

    def quantiles(self) -> Quantiles:
        p50, p95, p99 = (self.quantile(part) for part in QUANTILES)
        over = bool(self.total) and self.counts[-1] > 0.01 * self.total
        return Quantiles(p50, p95, p99, over)


def histogram(found: pb.LatencyHistogram) -> Histogram:
    return Histogram(tuple(found.bounds), tuple(found.counts)) if found.counts else Histogram()


def merged(found: Iterable[Histogram]) -> Histogram:
    total = Histogram()
    for one in found:
        total += one
    return total


def padded(values: Sequence[float | None], fallback: float = 0.0) -> float:
    """The largest that is there."""
    return max((value for value in values if value is not None), default=fallback)


__all__ = ["QUANTILES", "Histogram", "Quantiles", "histogram", "merged", "padded"]

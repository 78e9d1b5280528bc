"""Histograms: how often a value fell between which bounds. One array increment an observation; no torch, no locks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)
"""Seconds of an engine's step."""
LOAD_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds in which an adapter is brought a tier up."""
LAG_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds for which a change of the registry may have been unknown to a gateway."""
MIX = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Distinct adapters of a step."""


@dataclass(frozen=True, slots=True)
class Spread:
    """What a histogram held at one moment. ``counts`` has one place more than ``bounds``: beyond the last of them."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)


class Histogram:
    """``counts[i]`` observations were at most ``bounds[i]`` and above the bound before it. One writer at a time; a
    reader on another thread may see an observation counted whose value is not added yet."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds`` ascend and are final: a reader adds up counts of several moments."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def spread(self) -> Spread:
        return Spread(self.bounds, tuple(self.counts), self.total)


__all__ = ["LAG_S", "LOAD_S", "MIX", "STEP_S", "Histogram", "Spread"]

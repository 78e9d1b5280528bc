"""Times at which live requests expire."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from enum import IntEnum

from lorry.ids import RequestId

_SLACK = 1024


class Expiry(IntEnum):
    DEADLINE = 0
    QUEUE = 1
    TTFT = 2


class Timers:
    """A heap that is cleaned lazily: a request that ends early leaves its rows behind, and ``is_live(request,
    arrival)`` tells them apart (an id may come again). Rebuilt when most rows are dead."""

    def __init__(self, is_live: Callable[[RequestId, int], bool]) -> None:
        self._is_live = is_live
        self._heap: list[tuple[float, int, Expiry, RequestId]] = []

    def add(self, at: float, arrival: int, kind: Expiry, request: RequestId, live: int) -> None:
        """``live``: how many requests are live now."""
        if len(self._heap) > 4 * live + _SLACK:
            self._heap = [row for row in self._heap if self._is_live(row[3], row[1])]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (at, arrival, kind, request))

    def expired(self, now: float) -> Iterator[tuple[Expiry, RequestId]]:
        """Remove and yield what is due. A request that the caller ends is not yielded a second time."""
        while self._heap and self._heap[0][0] <= now:
            _, arrival, kind, request = heapq.heappop(self._heap)
            if self._is_live(request, arrival):
                yield kind, request

    def next_at(self) -> float | None:
        while self._heap and not self._is_live(self._heap[0][3], self._heap[0][1]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


__all__ = ["Expiry", "Timers"]

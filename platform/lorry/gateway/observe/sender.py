"""Takes stories from the event loop to a collector: by a bounded queue and one thread: no request ever waits."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lorry.gateway.observe.story import Story

QUEUE = 2048
BATCH = 256
EVERY_S = 1.0
_END_S = 1.0
_log = logging.getLogger(__name__)


class Exporter(Protocol):
    """Both are called on the sender's thread, but for the last ``close``."""

    def export(self, stories: Sequence[Story]) -> bool:
        """Whether the collector took them. May take as long as its own timeouts let it."""
        ...

    def close(self) -> None:
        """From another thread: ends an ``export`` that waits for another try."""
        ...


@dataclass(slots=True)
class TraceCounts:
    """Requests with a sampled trace: the collector took theirs; there was no room in the queue, or no time left at the
    end; the collector did not take them."""

    exported: int = 0
    dropped: int = 0
    failed: int = 0


class TraceSender:
    """``add`` from the event loop, ``close`` once, from any thread. ``counts`` is read whenever."""

    def __init__(
        self,
        exporter: Exporter,
        room: int = QUEUE,
        batch: int = BATCH,
        every_s: float = EVERY_S,
    ) -> None:
        """What waits is sent once it is a batch, or ``every_s`` after the first of it came."""
        self._exporter = exporter
        self._room, self._batch, self._every_s = room, batch, every_s
        self._waiting: deque[Story] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._failing = False
        self.counts = TraceCounts()
        self._thread = threading.Thread(target=self._run, name="lorry-traces", daemon=True)
        self._thread.start()

    def add(self, story: Story) -> None:
        """Never waits for the collector; drops the story where there is no room."""
        with self._changed:
            waiting = len(self._waiting)
            if self._closing or waiting >= self._room:
                self.counts.dropped += 1
                return
            self._waiting.append(story)
            if waiting == 0 or waiting + 1 == self._batch:
                self._changed.notify()

    def close(self, within_s: float) -> None:
        """Sends what waits, for at most so long; the rest is dropped and counted. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(within_s)
        if self._thread.is_alive():
            with self._changed:
                self.counts.dropped += len(self._waiting)
                self._waiting.clear()
            self._exporter.close()
            self._thread.join(_END_S)

    def _run(self) -> None:
        while batch := self._next():
            try:
                taken = self._exporter.export(batch)
            except Exception:  # this thread must outlive whatever one batch meets
                _log.exception("traces could not be exported")
                taken = False
            if taken:
                self.counts.exported += len(batch)
            else:
                self.counts.failed += len(batch)
            if taken is self._failing:  # said once, not with every batch
                self._failing = not taken
                if taken:
                    _log.warning("traces: the collector takes them again")
                else:
                    _log.warning("traces: the collector does not take them; requests go on, their traces are lost")
        self._exporter.close()

    def _next(self) -> list[Story]:
        """None are left and none will come: an empty list."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if len(self._waiting) < self._batch and not self._closing:
                self._changed.wait_for(lambda: len(self._waiting) >= self._batch or self._closing, self._every_s)
            return [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]


__all__ = ["BATCH", "EVERY_S", "QUEUE", "Exporter", "TraceCounts", "TraceSender"]

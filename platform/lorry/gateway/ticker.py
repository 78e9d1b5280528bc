"""One beat for all streams of a gateway."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Ticker:
    """Calls back, all at one moment, those that asked since the last: every ``seconds``, and never while nobody asks.

    A timer for each stream would wake the loop for each message, and what a wake costs is as much as the message.
    Belongs to one event loop.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waiting: list[Callable[[], object]] = []

    def soon(self, call: Callable[[], object]) -> None:
        """``call`` at the next beat, within ``seconds``. It must not raise."""
        if not self._waiting:
            loop = asyncio.get_running_loop()
            if self.seconds > 0:
                loop.call_at((math.floor(loop.time() / self.seconds) + 1) * self.seconds, self._beat)
            else:
                loop.call_soon(self._beat)
        self._waiting.append(call)

    def _beat(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


__all__ = ["Ticker"]

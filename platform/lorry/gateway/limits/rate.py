"""Requests in a minute."""

from __future__ import annotations

MINUTE_S = 60.0


class RateBucket:
    """Holds so many requests as may begin in a minute and refills evenly; it begins full. ``now`` is seconds of a clock
    that never goes back."""

    __slots__ = ("_at", "_held", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._held = float(per_minute)
        self._at = now

    def change(self, per_minute: int, now: float) -> None:
        """What was used under the old limit stays used under the new one."""
        self._refill(now)
        self._held = min(float(per_minute), max(0.0, self._held + per_minute - self.per_minute))
        self.per_minute = per_minute

    def wait_s(self, now: float) -> float:
        """Seconds until one request may begin; 0 for now."""
        self._refill(now)
        return max(0.0, (1.0 - self._held) * MINUTE_S / self.per_minute)

    def take(self) -> None:
        """After a ``wait_s`` of 0."""
        self._held -= 1.0

    def give_back(self) -> None:
        """What a request took that was refused after all."""
        self._held = min(float(self.per_minute), self._held + 1.0)

    def full(self, now: float) -> bool:
        self._refill(now)
        return self._held >= self.per_minute

    def _refill(self, now: float) -> None:
        if now > self._at:
            self._held = min(float(self.per_minute), self._held + (now - self._at) * self.per_minute / MINUTE_S)
            self._at = now


__all__ = ["RateBucket"]

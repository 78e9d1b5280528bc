"""One cost by which idle things of different kinds are ranked for eviction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestoreCosts:
    """What it costs to bring back what was evicted, in seconds. The defaults are what SmolLM2-135M takes on two cores:
    about 500 prompt tokens a second, and 2 GB/s for an image from host memory with its checksums. Only their ratio
    matters: a KV page is worth some hundred times its bytes of adapter."""

    prefill_s_per_token: float = 2e-3
    load_s_per_byte: float = 5e-10


class EvictionClock:
    """GreedyDual-Size (Cao and Irani, 1997): a thing is worth ``level`` at its last use plus what it costs to restore,
    per byte; the least worth goes first, and the level rises to its worth. So recency, cost and size weigh together,
    and what is dear but never used again still goes in the end."""

    def __init__(self) -> None:
        self._level = 0.0

    def worth(self, restore_s: float, size_bytes: int) -> float:
        """Of a thing that is used now."""
        return self._level + restore_s / size_bytes

    def evicted(self, worth: float) -> None:
        self._level = max(self._level, worth)


__all__ = ["EvictionClock", "RestoreCosts"]

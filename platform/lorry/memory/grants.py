"""What the ledger gives: promises of pages, an adapter's memory, and the account at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lorry.ids import ChunkId


@dataclass(slots=True, eq=False)
class PagePromise:
    """The right to ``pages`` KV pages, taken one at a time. Made and changed by the ledger alone."""

    pages: int
    taken: int = 0
    open: bool = True

    @property
    def left(self) -> int:
        return self.pages - self.taken


class AdapterNeed(NamedTuple):
    """What one adapter takes on the device: ``chunks`` for its rank rows, ``extra_bytes`` for all else that it brings
    (gains, biases, norms, embedding, head). Either may be 0, and both."""

    chunks: int
    extra_bytes: int = 0

    def covers(self, other: AdapterNeed) -> bool:
        """It is no less in either: where ``other`` finds no room, it finds none."""
        return self.chunks >= other.chunks and self.extra_bytes >= other.extra_bytes


@dataclass(frozen=True, slots=True, eq=False)
class AdapterGrant:
    """One adapter's memory, taken and given back whole: chunks in rank order, and so many bytes for its extras.
    ``contiguous``: ids are ``chunks[0], chunks[0] + 1, ...``."""

    chunks: tuple[ChunkId, ...]
    extra_bytes: int = 0

    @property
    def contiguous(self) -> bool:
        return not self.chunks or self.chunks == tuple(range(self.chunks[0], self.chunks[0] + len(self.chunks)))


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Counts at one moment. ``pages``, ``chunks`` and ``extras`` (bytes) are the most that can be in use.
    ``pages_promised`` are spoken for by sequences and not taken yet. ``bytes_used``: taken, promised, or waiting for a
    step; ``bytes_adapters``: those of chunks and extras, ``bytes_adapters_most`` the most that they can be together."""

    pages: int
    pages_free: int
    pages_pending: int
    pages_used: int
    pages_promised: int
    chunks: int
    chunks_free: int
    chunks_pending: int
    chunks_used: int
    extras: int
    extras_free: int
    extras_pending: int
    extras_used: int
    bytes: int
    bytes_used: int
    bytes_backed: int
    bytes_adapters: int
    bytes_adapters_most: int


__all__ = ["AdapterGrant", "AdapterNeed", "MemoryUse", "PagePromise"]

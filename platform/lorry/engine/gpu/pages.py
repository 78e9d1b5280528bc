"""Which page of the device's arena stands behind a page or chunk id of the ledger. No torch.

The ledger bounds the bytes behind its ids, not the ids: there are more of them than the arena has pages. An id gets a
page when it is first used and keeps it until the plan gives its memory back, so block tables and chunks of one adapter
need not be adjacent, and KV and adapters take from the same pages.
"""

from __future__ import annotations

from collections.abc import Iterable

from lorry.errors import InternalError
from lorry.ids import ChunkId, PageId


class PageMap:
    """Of an arena with ``count`` pages. One thread (the step loop) owns it."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._pages: dict[PageId, int] = {}
        self._chunks: dict[ChunkId, int] = {}
        self._count = count

    @property
    def free(self) -> int:
        return len(self._free)

    def page(self, page: PageId) -> int:
        """Raises InternalError where the ledger has promised more than the arena has."""
        found = self._pages.get(page)
        if found is None:
            found = self._pages[page] = self._take()
        return found

    def chunk(self, chunk: ChunkId) -> int:
        """As ``page``."""
        found = self._chunks.get(chunk)
        if found is None:
            found = self._chunks[chunk] = self._take()
        return found

    def release_pages(self, pages: Iterable[PageId]) -> None:
        """Ids that have no page are passed over."""
        self._free.extend(self._pages.pop(page) for page in pages if page in self._pages)

    def release_chunks(self, chunks: Iterable[ChunkId]) -> None:
        self._free.extend(self._chunks.pop(chunk) for chunk in chunks if chunk in self._chunks)

    def check_integrity(self) -> None:
        """Raises InternalError unless every page of the arena is free or behind exactly one id."""
        seen = [*self._free, *self._pages.values(), *self._chunks.values()]
        if sorted(seen) != list(range(self._count)):
            raise InternalError(f"{len(set(seen))} of {self._count} pages of the device are free or behind one id")

    def _take(self) -> int:
        if not self._free:
            raise InternalError(
                f"the ledger has memory behind more ids than the device's {self._count} pages: {len(self._pages)} "
                f"pages and {len(self._chunks)} chunks"
            )
        return self._free.pop()


__all__ = ["PageMap"]

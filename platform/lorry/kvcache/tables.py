"""Block tables: which KV pages hold a sequence's tokens, in position order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lorry.errors import InternalError
from lorry.ids import PageId, SequenceId
from lorry.memory import MemoryLedger, PagePromise


@dataclass(slots=True)
class _Table:
    promise: PagePromise
    pages: tuple[PageId, ...] = ()


class BlockTables:
    """The block table of every running sequence. A table has one reference on each of its pages; other tables, and the
    prefix index, may have theirs on the same.

    Page i of a table holds positions ``i * page_tokens .. (i + 1) * page_tokens - 1``. Not thread-safe.
    """

    def __init__(self, ledger: MemoryLedger) -> None:
        self._ledger = ledger
        self._tables: dict[SequenceId, _Table] = {}

    @property
    def page_tokens(self) -> int:
        return self._ledger.config.page_tokens

    def __len__(self) -> int:
        return len(self._tables)

    def open(self, sequence: SequenceId, own_pages: int, shared: Sequence[PageId] = ()) -> bool:
        """Begin with ``shared`` pages and the promise of so many more. False, and nothing changed: no room now."""
        if sequence in self._tables:
            raise InternalError(f"sequence {sequence} has a block table already")
        promise = self._ledger.promise_pages(own_pages)
        if promise is None:
            return False
        for page in shared:
            self._ledger.share_page(page)
        self._tables[sequence] = _Table(promise, tuple(shared))
        return True

    def covers(self, sequence: SequenceId, tokens: int) -> bool:
        """Whether the table and what it is promised reach that far."""
        table = self._tables[sequence]
        return self._ledger.pages_for(tokens) <= len(table.pages) + table.promise.left

    def widen(self, sequence: SequenceId) -> bool:
        """Promise one page more. False, and nothing changed: no room now."""
        return self._ledger.widen_promise(self._tables[sequence].promise)

    def extend(self, sequence: SequenceId, tokens: int) -> tuple[PageId, ...]:
        """The table covering positions 0 .. tokens-1, with new pages where it did not reach yet. Never shrinks;
        the answer has exactly ``ceil(tokens / page_tokens)`` pages. Raises InternalError beyond the promise."""
        table = self._tables[sequence]
        want = self._ledger.pages_for(tokens)
        have = len(table.pages)
        if want > have:
            table.pages += tuple(self._ledger.take_page(table.promise) for _ in range(want - have))
        return table.pages if want >= have else table.pages[:want]

    def replace(self, sequence: SequenceId, index: int, page: PageId, at_step: int) -> None:
        """Use ``page``, which somebody else has and which holds the same, in place of the table's own."""
        table = self._tables[sequence]
        self._ledger.share_page(page)
        self._ledger.drop_page(table.pages[index], at_step)
        table.pages = (*table.pages[:index], page, *table.pages[index + 1 :])

    def pages(self, sequence: SequenceId) -> tuple[PageId, ...]:
        return self._tables[sequence].pages

    def close(self, sequence: SequenceId, at_step: int) -> None:
        """Forget the sequence; pages that nobody else has are usable once ``at_step``, its last step, is done."""
        table = self._tables.pop(sequence)
        self._ledger.end_promise(table.promise)
        for page in table.pages:
            self._ledger.drop_page(page, at_step)

    def references(self) -> dict[PageId, int]:
        """How many tables each page is in."""
        found: dict[PageId, int] = {}
        for table in self._tables.values():
            for page in table.pages:
                found[page] = found.get(page, 0) + 1
        return found

    def check_integrity(self) -> None:
        """Raises InternalError if a page is twice in one table, or in more tables than it has references, or a table's
        promise has ended or is overdrawn."""
        for sequence, table in self._tables.items():
            if len(set(table.pages)) != len(table.pages):
                raise InternalError(f"sequence {sequence}: a KV page is in its block table twice")
            if not table.promise.open or table.promise.left < 0:
                raise InternalError(f"sequence {sequence}: its block table goes beyond its promise")
        for page, count in self.references().items():
            if self._ledger.references(page) < count:
                raise InternalError(f"KV page {page} is in {count} block tables, which is more than its references")


__all__ = ["BlockTables"]

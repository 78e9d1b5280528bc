"""Block tables: which KV pages hold a sequence's tokens, in position order."""

from __future__ import annotations

from dataclasses import dataclass

from lorry.errors import InternalError
from lorry.ids import PageId, SequenceId
from lorry.memory import MemoryLedger, PagePromise


@dataclass(slots=True)
class _Table:
    promise: PagePromise
    pages: tuple[PageId, ...] = ()


class BlockTables:
    """The block table of every running sequence, grown within the pages it was promised.

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

    def open(self, sequence: SequenceId, tokens: int) -> bool:
        """Promise pages for ``tokens`` positions, the most the sequence will ever have. False: no room now."""
        if sequence in self._tables:
            raise InternalError(f"sequence {sequence} has a block table already")
        promise = self._ledger.promise_pages(self._ledger.pages_for(tokens))
        if promise is None:
            return False
        self._tables[sequence] = _Table(promise)
        return True

    def extend(self, sequence: SequenceId, tokens: int) -> tuple[PageId, ...]:
        """The table covering positions 0 .. tokens-1, with new pages where it did not reach yet. Never shrinks;
        the answer has exactly ``ceil(tokens / page_tokens)`` pages. Raises InternalError beyond the promise."""
        table = self._tables[sequence]
        want = self._ledger.pages_for(tokens)
        have = len(table.pages)
        if want > have:
            table.pages += tuple(self._ledger.take_page(table.promise) for _ in range(want - have))
        return table.pages if want >= have else table.pages[:want]

    def pages(self, sequence: SequenceId) -> tuple[PageId, ...]:
        return self._tables[sequence].pages

    def close(self, sequence: SequenceId, at_step: int) -> None:
        """Forget the sequence; its pages are usable once ``at_step``, the last step with it, is done."""
        self._ledger.end_promise(self._tables.pop(sequence).promise, at_step)

    def check_integrity(self) -> None:
        """Raises InternalError if a page is in two tables or a table disagrees with its promise."""
        seen: set[PageId] = set()
        for sequence, table in self._tables.items():
            if list(table.pages) != table.promise.taken or not table.promise.open:
                raise InternalError(f"sequence {sequence}: its block table differs from the pages it took")
            if not seen.isdisjoint(table.pages):
                raise InternalError(f"sequence {sequence}: one of its KV pages is in another table too")
            seen.update(table.pages)


__all__ = ["BlockTables"]

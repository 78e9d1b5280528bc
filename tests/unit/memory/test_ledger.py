"""Promises, chunks, and books that balance."""

from __future__ import annotations

import pytest

from lorry.config import MemoryConfig
from lorry.errors import InternalError
from lorry.memory import MemoryLedger


def ledger(pages: int = 10, chunks: int = 4) -> MemoryLedger:
    config = MemoryConfig(
        budget_bytes=(pages + chunks) * 100,
        adapter_fraction=(chunks + 0.5) / (pages + chunks),
        page_tokens=4,
        chunk_rank=8,
        max_slots=4,
        max_rank=16,
    )
    made = MemoryLedger(config, 100, 100, 4)
    assert (made.split.pages, made.split.chunks) == (pages, chunks)
    return made


def test_what_is_promised_is_reserved_until_it_is_taken() -> None:
    books = ledger()
    first = books.promise_pages(6)
    assert first is not None
    assert books.promise_pages(5) is None
    second = books.promise_pages(4)
    assert second is not None
    assert books.pages_promisable == 0
    assert [books.take_page(first) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    assert [books.take_page(second) for _ in range(4)] == [6, 7, 8, 9]
    use = books.use()
    assert (use.pages_free, use.pages_used, use.pages_promised) == (0, 10, 0)
    books.check_integrity()


def test_a_promise_that_was_not_taken_is_free_at_once_and_the_pages_when_their_step_is_done() -> None:
    books = ledger()
    promise = books.promise_pages(8)
    assert promise is not None
    books.take_page(promise)
    books.take_page(promise)
    books.end_promise(promise, at_step=3)
    assert books.pages_promisable == 8
    assert books.use().pages_pending == 2
    books.step_done(3)
    assert books.pages_promisable == 10
    books.check_integrity()


def test_nobody_takes_beyond_a_promise_or_after_its_end() -> None:
    books = ledger()
    promise = books.promise_pages(1)
    assert promise is not None
    books.take_page(promise)
    with pytest.raises(InternalError, match="1 KV pages"):
        books.take_page(promise)
    books.end_promise(promise, at_step=0)
    with pytest.raises(InternalError):
        books.take_page(promise)
    with pytest.raises(InternalError, match="twice"):
        books.end_promise(promise, at_step=0)


def test_chunks() -> None:
    books = ledger()
    two = books.take_chunks(2)
    one = books.take_chunks(1)
    assert two is not None
    assert one is not None
    assert (two.chunks, two.contiguous, books.chunks_free) == ((0, 1), True, 1)
    assert books.take_chunks(2) is None
    books.free_chunks(two, at_step=0)
    assert books.chunks_free == 1
    books.step_done(0)
    grant = books.take_chunks(3)
    assert grant is not None
    assert (grant.chunks, grant.contiguous) == ((0, 1, 3), False)
    books.free_chunks(one, at_step=0)
    with pytest.raises(InternalError, match="adapter chunk 2"):
        books.free_chunks(one, at_step=0)
    with pytest.raises(InternalError):
        books.take_chunks(0)


def test_rounding() -> None:
    books = ledger()
    assert [books.pages_for(n) for n in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]
    assert [books.chunks_for(r) for r in (1, 8, 9, 16)] == [1, 1, 2, 2]


def test_the_integrity_check_sees_a_promise_that_was_tampered_with() -> None:
    books = ledger()
    promise = books.promise_pages(3)
    assert promise is not None
    promise.pages = 5
    with pytest.raises(InternalError, match="promised"):
        books.check_integrity()

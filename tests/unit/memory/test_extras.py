"""Adapters' extras: bytes beside chunks, out of the same budget, under a cap and beside the KV pages' floor."""

from __future__ import annotations

import pytest

from lorry.config import MemoryConfig
from lorry.errors import InternalError
from lorry.memory import AdapterNeed, MemoryLedger
from tests.unit.memory.test_ledger import ledger, promised, take


def test_chunks_and_extras_come_together_or_not_at_all() -> None:
    books = ledger()
    grant = take(books, 2, 130)
    assert grant is not None
    assert (grant.chunks, grant.extra_bytes, grant.contiguous) == ((0, 1), 130, True)
    use = books.use()
    assert (use.chunks_used, use.extras_used, use.bytes_used, use.bytes_adapters) == (2, 130, 330, 330)
    assert (books.chunk_ids_free, books.extra_bytes_free, books.bytes_free) == (2, 370, 870)
    for chunks, extra_bytes in ((3, 0), (0, 371), (3, 371)):
        assert take(books, chunks, extra_bytes) is None
        assert books.use() == use, "nothing changed"
    books.check_integrity()


def test_an_adapter_may_have_no_chunks_or_no_bytes_at_all() -> None:
    books = ledger()
    bytes_alone, nothing = take(books, 0, 500), take(books, 0, 0)
    assert bytes_alone is not None
    assert nothing is not None
    assert (bytes_alone.chunks, nothing.chunks, nothing.contiguous) == ((), (), True)
    assert books.use().bytes_used == 500
    books.free_adapter(nothing, at_step=9)
    assert not books.awaits_step, "nothing will be free"
    with pytest.raises(InternalError, match="freed them twice"):
        books.free_adapter(nothing, at_step=9)
    books.free_adapter(bytes_alone, at_step=-1)
    assert books.use().bytes_used == 0
    books.check_integrity()


def test_extras_are_free_once_the_step_that_reads_them_is_done() -> None:
    books = ledger()
    grant = take(books, 0, 500)
    assert grant is not None
    books.free_adapter(grant, at_step=2)
    assert books.awaits_step, "though no chunk and no page does"
    use = books.use()
    assert (use.extras_free, use.extras_pending, use.extras_used) == (0, 500, 0)
    assert take(books, 0, 1) is None
    books.step_done(1)
    assert books.awaits_step
    assert take(books, 0, 1) is None
    books.step_done(2)
    assert not books.awaits_step
    assert take(books, 0, 500) is not None
    with pytest.raises(InternalError, match="500 bytes of extras were freed but are not taken"):
        books.free_adapter(grant, at_step=2)
    books.check_integrity()


def test_extras_and_pages_take_from_one_budget() -> None:
    books = ledger(pages=10, chunks=4)
    grant = take(books, 0, 450)
    assert grant is not None
    assert (books.bytes_free, books.pages_promisable) == (750, 7)
    promise = promised(books, 7)
    assert not books.widen_promise(promise), "50 bytes are left"
    assert take(books, 0, 50) is not None
    assert books.bytes_free == 0
    assert take(books, 1) is None
    books.free_adapter(grant, at_step=0)
    books.step_done(0)
    assert books.widen_promise(promise, 3)
    assert take(books, 1, 51) is None, "all but 150 bytes are promised"
    assert take(books, 1, 50) is not None
    books.check_integrity()


def test_chunks_and_extras_together_leave_the_floor_of_kv() -> None:
    """600 of 1000 bytes are the floor. Either kind alone may have 300."""
    config = MemoryConfig(1000, 0.3, 0.6, 0.3, page_tokens=4, chunk_rank=8, max_slots=4, max_rank=8)
    books = MemoryLedger(config, 100, 100, 4)
    assert (books.split.chunks, books.split.extras_bytes, books.split.adapter_bytes) == (3, 300, 400)
    first = take(books, 2, 150)
    assert first is not None
    assert (books.chunk_ids_free, books.extra_bytes_free, books.adapter_bytes_free) == (1, 150, 50)
    assert take(books, 1) is None
    assert take(books, 0, 51) is None
    assert take(books, 0, 50) is not None
    books.free_adapter(first, at_step=0)
    assert books.adapter_bytes_free == 0, "a step may still read them"
    books.step_done(0)
    assert take(books, 2, 150) is not None
    assert books.use().bytes_adapters == books.use().bytes_adapters_most == 400
    promised(books, 6)
    books.check_integrity()


def test_extras_get_the_memory_of_idle_pages_and_then_of_idle_chunks() -> None:
    books = ledger(pages=10, chunks=4)
    grant = take(books, 4)
    assert grant is not None
    promise = promised(books, 8)
    pages = [books.take_page(promise) for _ in range(8)]
    books.free_adapter(grant, at_step=-1)
    for page in pages[5:]:
        books.drop_page(page, at_step=-1)
    assert books.use().bytes_backed == 1200
    extras = take(books, 0, 420)
    assert extras is not None
    assert books.idle() == ((7, 6, 5), (3, 2)), "420 bytes are four pieces and a bit"
    assert books.use().bytes_backed == 500 + 200 + 420
    books.free_adapter(extras, at_step=3)
    assert books.use().bytes_backed == 1120, "it keeps its memory until no step reads it"
    books.step_done(3)
    assert books.use().bytes_backed == 700
    assert books.idle() == ((), ()), "what is free of extras has no memory that one had to ask for"
    books.check_integrity()


def test_memory_behind_extras_counts_when_a_page_is_taken() -> None:
    books = ledger(pages=10, chunks=4)
    grant = take(books, 4)
    assert grant is not None
    books.free_adapter(grant, at_step=-1)
    assert take(books, 0, 500) is not None
    promise = promised(books, 7)
    for _ in range(3):
        books.take_page(promise)
    assert books.idle() == ((), ())
    books.take_page(promise)
    assert books.idle() == ((), (3,))
    books.check_integrity()


def test_a_need_covers_one_that_is_no_more_in_either() -> None:
    need = AdapterNeed(2, 100)
    assert need.covers(need)
    assert need.covers(AdapterNeed(2, 0))
    assert need.covers(AdapterNeed(0, 100))
    assert not need.covers(AdapterNeed(3, 0))
    assert not need.covers(AdapterNeed(1, 101))

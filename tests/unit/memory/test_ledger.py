"""Promises, references, chunks, extras, one budget for all, and books that balance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lorry.config import MemoryConfig
from lorry.errors import InternalError
from lorry.ids import PageId
from lorry.memory import AdapterGrant, AdapterNeed, MemoryLedger, PagePromise


def ledger(pages: int = 10, chunks: int = 4, extras: int = 500) -> MemoryLedger:
    """So many pages and chunks of 100 bytes and bytes of extras at most, ``pages`` + 2 pieces of all kinds at a time: a
    largest adapter is 2 chunks."""
    total = pages + 2
    config = MemoryConfig(
        budget_bytes=total * 100,
        adapter_fraction=(chunks + 0.5) / total,
        kv_fraction=0.0,
        extras_fraction=(extras + 0.5) / (total * 100),
        page_tokens=4,
        chunk_rank=8,
        max_slots=4,
        max_rank=16,
    )
    made = MemoryLedger(config, 100, 100, 4)
    split = made.split
    assert (split.pages, split.chunks, split.extras_bytes, split.budget_bytes) == (pages, chunks, extras, total * 100)
    return made


def take(books: MemoryLedger, chunks: int, extra_bytes: int = 0) -> AdapterGrant | None:
    return books.take_adapter(AdapterNeed(chunks, extra_bytes))


def promised(books: MemoryLedger, count: int) -> PagePromise:
    promise = books.promise_pages(count)
    assert promise is not None
    return promise


def test_what_is_promised_is_reserved_until_it_is_taken() -> None:
    books = ledger()
    first = promised(books, 6)
    assert books.promise_pages(5) is None
    second = promised(books, 4)
    assert books.pages_promisable == 0
    assert books.use().bytes_used == 1000
    assert [books.take_page(first) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    assert [books.take_page(second) for _ in range(4)] == [6, 7, 8, 9]
    use = books.use()
    assert (use.pages_free, use.pages_used, use.pages_promised, use.bytes_used) == (0, 10, 0, 1000)
    books.check_integrity()


def test_a_promise_that_was_not_taken_is_free_at_once_and_the_pages_keep_their_references() -> None:
    books = ledger()
    promise = promised(books, 8)
    pages = [books.take_page(promise) for _ in range(2)]
    books.end_promise(promise)
    assert books.pages_promisable == 8
    for page in pages:
        assert books.references(page) == 1
        books.drop_page(page, at_step=3)
    assert books.pages_promisable == 8
    assert books.use().pages_pending == 2
    assert books.awaits_step
    books.step_done(3)
    assert books.pages_promisable == 10
    assert not books.awaits_step
    books.check_integrity()


def test_nobody_takes_beyond_a_promise_or_after_its_end() -> None:
    books = ledger()
    promise = promised(books, 1)
    books.take_page(promise)
    with pytest.raises(InternalError, match="1 KV pages"):
        books.take_page(promise)
    books.end_promise(promise)
    with pytest.raises(InternalError):
        books.take_page(promise)
    with pytest.raises(InternalError, match="twice"):
        books.end_promise(promise)
    with pytest.raises(InternalError, match="after its end"):
        books.widen_promise(promise)
    open_one = promised(books, 1)
    books.end_promise(open_one)
    with pytest.raises(InternalError):
        books.take_page(open_one)


def test_a_promise_widens_as_long_as_there_is_room() -> None:
    books = ledger()
    first, second = promised(books, 1), promised(books, 7)
    assert books.widen_promise(first)
    assert not books.widen_promise(first, 2)
    assert (first.pages, books.use().pages_promised) == (2, 9), "refused: nothing changed"
    assert books.widen_promise(first)
    assert [books.take_page(first) for _ in range(3)] == [0, 1, 2]
    assert not books.widen_promise(second)
    books.check_integrity()


def test_a_page_is_free_when_its_last_reference_goes_and_the_last_step_of_any_is_done() -> None:
    books = ledger()
    page = books.take_page(promised(books, 1))
    books.share_page(page)
    books.share_page(page)
    assert books.references(page) == 3
    books.drop_page(page, at_step=9)
    books.drop_page(page, at_step=2)
    assert books.use().pages_used == 1
    books.drop_page(page, at_step=5)
    assert (books.references(page), books.use().pages_pending) == (0, 1)
    books.step_done(8)
    assert books.use().pages_pending == 1, "the first who let go touches it until step 9"
    books.step_done(9)
    assert books.use().pages_free == 10
    again = books.take_page(promised(books, 1))
    assert again == page
    books.drop_page(again, at_step=-1)
    assert books.use().pages_free == 10, "what others touched in its former life holds nothing back"
    books.check_integrity()


def test_what_nobody_has_can_neither_be_shared_nor_dropped() -> None:
    books = ledger()
    page = books.take_page(promised(books, 1))
    books.drop_page(page, at_step=0)
    with pytest.raises(InternalError, match="twice"):
        books.drop_page(page, at_step=0)
    with pytest.raises(InternalError, match="shared although nobody"):
        books.share_page(page)
    with pytest.raises(InternalError):
        books.share_page(PageId(7))
    books.check_integrity()


def test_chunks() -> None:
    books = ledger()
    two = take(books, 2)
    one = take(books, 1)
    assert two is not None
    assert one is not None
    assert (two.chunks, two.contiguous, books.chunk_ids_free) == ((0, 1), True, 1)
    assert take(books, 2) is None
    books.free_adapter(two, at_step=0)
    assert books.chunk_ids_free == 1
    assert books.awaits_step
    books.step_done(0)
    grant = take(books, 3)
    assert grant is not None
    assert (grant.chunks, grant.contiguous) == ((0, 1, 3), False)
    books.free_adapter(one, at_step=0)
    with pytest.raises(InternalError, match=r"adapter chunks \[2\] and 0 bytes"):
        books.free_adapter(one, at_step=0)
    with pytest.raises(InternalError, match="-1 chunks"):
        take(books, -1)
    books.check_integrity()


def test_pages_and_chunks_take_from_one_budget() -> None:
    books = ledger(pages=10, chunks=4)
    grant = take(books, 4)
    assert grant is not None
    assert (books.bytes_free, books.pages_promisable, books.page_ids_free) == (800, 8, 10)
    assert books.promise_pages(9) is None
    promise = promised(books, 8)
    assert not books.widen_promise(promise), "its bytes are the adapters'"
    assert books.bytes_free == 0
    books.free_adapter(grant, at_step=1)
    assert not books.widen_promise(promise), "a step may still read them"
    books.step_done(1)
    assert books.widen_promise(promise, 2)
    assert take(books, 3) is None, "there are ids for it but its bytes are promised"
    assert take(books, 2) is not None, "those of a largest adapter are never promised away"
    books.check_integrity()


def test_memory_stays_behind_free_ids_until_the_other_kind_wants_the_bytes() -> None:
    books = ledger(pages=10, chunks=4)
    promise = promised(books, 10)
    pages = [books.take_page(promise) for _ in range(10)]
    books.end_promise(promise)
    for page in pages:
        books.drop_page(page, at_step=-1)
    assert (books.use().bytes_used, books.use().bytes_backed) == (0, 1000)
    assert books.idle() == ((), ()), "nobody wants it"
    assert take(books, 2) is not None
    assert books.idle() == ((), ()), "there was budget left"
    assert take(books, 2) is not None
    assert books.use().bytes_backed == 1200
    assert books.idle() == ((9, 8), ()), "the highest, told before the step that uses the chunks"
    assert books.idle() == ((), ()), "told once"
    again = promised(books, 8)
    assert [books.take_page(again) for _ in range(8)] == list(range(8))
    assert books.idle() == ((), ()), "the lowest ids, which have their memory still"
    books.check_integrity()


def test_pages_get_the_memory_of_idle_chunks() -> None:
    books = ledger(pages=10, chunks=4)
    grant = take(books, 4)
    assert grant is not None
    books.free_adapter(grant, at_step=-1)
    promise = promised(books, 10)
    for _ in range(8):
        books.take_page(promise)
    assert books.idle() == ((), ())
    books.take_page(promise)
    books.take_page(promise)
    assert books.idle() == ((), (3, 2))
    books.check_integrity()


def test_where_both_kinds_have_idle_memory_the_other_kind_gives_it() -> None:
    books = ledger(pages=10, chunks=4)
    promise = promised(books, 10)
    pages = [books.take_page(promise) for _ in range(10)]
    books.drop_page(pages[3], at_step=-1)
    grant = take(books, 3)
    assert grant is not None
    assert books.idle() == ((3,), ())
    books.free_adapter(grant, at_step=-1)
    books.drop_page(pages[9], at_step=-1)
    assert books.take_page(promised(books, 1)) == 3
    assert books.idle() == ((), (2,)), "page 9 will be the next that is taken"


def test_the_memory_of_an_id_that_waits_for_its_step_stays() -> None:
    books = ledger(pages=10, chunks=4)
    promise = promised(books, 9)
    pages = [books.take_page(promise) for _ in range(9)]
    books.drop_page(pages[8], at_step=4)
    assert take(books, 3) is not None, "900 bytes and 300"
    assert books.idle() == ((), ())
    assert take(books, 1) is None
    books.step_done(4)
    assert take(books, 1) is not None
    assert books.idle() == ((8,), ())


def test_an_id_that_is_given_back_twice_before_the_next_step_is_told_once() -> None:
    books = ledger(pages=10, chunks=4)
    promise = promised(books, 10)
    pages = [books.take_page(promise) for _ in range(10)]
    for page in pages[8:]:
        books.drop_page(page, at_step=-1)
    first = take(books, 4)
    assert first is not None
    books.free_adapter(first, at_step=-1)
    for page in (books.take_page(p) for p in [promised(books, 2)] for _ in range(2)):
        books.drop_page(page, at_step=-1)
    assert take(books, 4) is not None
    told, chunks = books.idle()
    assert sorted(told) == [8, 9]
    assert len(set(chunks)) == len(chunks)


def test_rounding() -> None:
    books = ledger()
    assert [books.pages_for(n) for n in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]
    assert [books.chunks_for(r) for r in (1, 8, 9, 16)] == [1, 1, 2, 2]


def _promise(books: MemoryLedger, promise: PagePromise, _page: PageId) -> None:
    promise.pages += 1


def _reserved(books: MemoryLedger, promise: PagePromise, _page: PageId) -> None:
    promise.pages += 9
    books._reserved += 9


def _reference_lost(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    books._references[page] = 0


def _reference_of_nobody(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    books._references[9] = 1


def _negative(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    books._references[9] = -1


def _over_budget(books: MemoryLedger, promise: PagePromise, _page: PageId) -> None:
    assert take(books, 4) is not None
    promise.pages += 6
    books._reserved += 6


def _not_backed(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    books._pages._backed[page] = 0
    books._pages._backed_count -= 1


def _chunk_not_backed(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    grant = take(books, 1)
    assert grant is not None
    books._chunks.unback(4)
    books._chunks._backed[grant.chunks[0]] = 0
    books._chunks._backed_count -= 1


def _chunk_of_nobody(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    books._chunks.take(1)


def _extras_of_nobody(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    books._extras.take(1)


def _grant_forgotten(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    take(books, 0, 1)
    books._grants.clear()


def _extras_over_their_cap(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    assert take(books, 0, 100) is not None
    books._extras.cap = 99


def _floor(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    assert take(books, 4, 500) is not None
    books.split = replace(books.split, adapter_bytes=899)


def _backed_over_budget(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    books._pages.back(range(10))
    books._chunks.back(range(4))


def _arena(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    books._pages._taken[9] = 1


def _chunk_arena(books: MemoryLedger, _promise: PagePromise, page: PageId) -> None:
    books._chunks._free.pop()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_promise, "differs from the promises"),
        (_reserved, "KV pages are promised but"),
        (_reference_lost, "nobody has it"),
        (_reference_of_nobody, "nobody has it"),
        (_negative, "fewer references than none"),
        (_over_budget, "bytes more than the budget"),
        (_not_backed, "KV page 0 is in use without memory"),
        (_chunk_not_backed, "adapter chunk 0 is in use without memory"),
        (_chunk_of_nobody, "adapter chunk is taken and no grant has it"),
        (_extras_of_nobody, "bytes of extras are taken and no grant"),
        (_grant_forgotten, "bytes of extras are taken and no grant"),
        (_extras_over_their_cap, "the cap is 99"),
        (_floor, "1 bytes of the KV pages' floor"),
        (_backed_over_budget, "1400 bytes have memory behind them"),
        (_arena, "KV page arena"),
        (_chunk_arena, "adapter chunk arena"),
    ],
)
def test_the_integrity_check_sees(damage: Callable[[MemoryLedger, PagePromise, PageId], None], words: str) -> None:
    books = ledger()
    promise = promised(books, 3)
    page = books.take_page(promise)
    books.check_integrity()
    damage(books, promise, page)
    with pytest.raises(InternalError, match=words):
        books.check_integrity()

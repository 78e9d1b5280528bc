"""Pages, chunks and extras that trade one budget's bytes, in any order, against a model of who has what and what has
memory."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lorry.config import MemoryConfig
from lorry.ids import ChunkId, PageId
from lorry.memory import AdapterGrant, AdapterNeed, MemoryLedger, PagePromise

PAGE, CHUNK, BUDGET = 300, 500, 6000
EXTRAS, ADAPTERS = 1800, 4800
"""Most bytes of extras, and of chunks and extras together: 7 chunks and all extras would be 5,300."""


class LedgerMachine(RuleBasedStateMachine):
    """``held``: a bag of references. ``device_*``: what has physical memory, as a device would see it, which writes
    what it is given at each plan and gives back what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        config = MemoryConfig(BUDGET, 0.6, 0.2, 0.3, page_tokens=4, chunk_rank=8, max_slots=8, max_rank=16)
        self.books = MemoryLedger(config, PAGE, CHUNK, 8)
        split = self.books.split
        assert (split.pages, split.chunks, split.extras_bytes, split.adapter_bytes) == (16, 7, EXTRAS, ADAPTERS)
        self.done = -1
        self.promises: list[PagePromise] = []
        self.held: Counter[PageId] = Counter()
        self.last: dict[PageId, int] = {}
        self.pages_pending: dict[PageId, int] = {}
        self.grants: list[AdapterGrant] = []
        self.chunks_pending: dict[ChunkId, int] = {}
        self.extras_pending: list[tuple[int, int]] = []
        self.device_pages: set[PageId] = set()
        self.device_chunks: set[ChunkId] = set()
        self.new_pages: set[PageId] = set()
        self.new_chunks: set[ChunkId] = set()

    @property
    def promised(self) -> int:
        return sum(promise.left for promise in self.promises)

    @property
    def page_ids(self) -> int:
        return 16 - len(self.held) - len(self.pages_pending) - self.promised

    @property
    def chunk_ids(self) -> int:
        return 7 - sum(len(g.chunks) for g in self.grants) - len(self.chunks_pending)

    @property
    def extras(self) -> int:
        """Taken or pending."""
        return sum(grant.extra_bytes for grant in self.grants) + sum(size for size, _ in self.extras_pending)

    @property
    def adapter_bytes(self) -> int:
        return (7 - self.chunk_ids) * CHUNK + self.extras

    @property
    def bytes_left(self) -> int:
        return BUDGET - (16 - self.page_ids) * PAGE - self.adapter_bytes

    @rule(count=st.integers(0, 17))
    def promise(self, count: int) -> None:
        fits = count <= self.page_ids and count * PAGE <= self.bytes_left
        promise = self.books.promise_pages(count)
        assert (promise is not None) == fits
        if promise is not None:
            self.promises.append(promise)

    @precondition(lambda self: self.promises)
    @rule(data=st.data(), count=st.integers(1, 3))
    def widen(self, data: st.DataObject, count: int) -> None:
        promise = data.draw(st.sampled_from(self.promises))
        fits, before = count <= self.page_ids and count * PAGE <= self.bytes_left, promise.pages
        assert self.books.widen_promise(promise, count) == fits
        assert promise.pages == before + (count if fits else 0)

    @precondition(lambda self: self.promised)
    @rule(data=st.data(), most=st.integers(1, 9))
    def take(self, data: st.DataObject, most: int) -> None:
        """A promise is always kept."""
        promise = data.draw(st.sampled_from([p for p in self.promises if p.left]))
        for _ in range(min(most, promise.left)):
            free = set(range(16)) - self.held.keys() - self.pages_pending.keys()
            page = self.books.take_page(promise)
            assert page == min(free)
            self.held[page], self.last[page] = 1, -1
            self.new_pages.add(page)

    @precondition(lambda self: self.promises)
    @rule(data=st.data())
    def end_promise(self, data: st.DataObject) -> None:
        promise = data.draw(st.sampled_from(self.promises))
        self.books.end_promise(promise)
        self.promises.remove(promise)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.held)))
        self.books.share_page(page)
        self.held[page] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), most=st.integers(1, 9), ahead=st.integers(-1, 2))
    def drop(self, data: st.DataObject, most: int, ahead: int) -> None:
        for page in data.draw(st.lists(st.sampled_from(sorted(self.held)), max_size=most, unique=True)):
            self.books.drop_page(page, self.done + ahead)
            self.last[page] = max(self.last[page], self.done + ahead)
            self.held[page] -= 1
            if not self.held[page]:
                del self.held[page]
                if self.last[page] > self.done:
                    self.pages_pending[page] = self.last[page]

    @rule(count=st.integers(0, 4), extra_bytes=st.just(0) | st.integers(1, 400) | st.integers(401, EXTRAS + 1))
    def take_adapter(self, count: int, extra_bytes: int) -> None:
        size = count * CHUNK + extra_bytes
        fits = count <= self.chunk_ids and size <= self.bytes_left
        fits = fits and extra_bytes <= EXTRAS - self.extras and size <= ADAPTERS - self.adapter_bytes
        before = self.books.use()
        grant = self.books.take_adapter(AdapterNeed(count, extra_bytes))
        assert (grant is not None) == fits
        assert fits or self.books.use() == before, "all or nothing"
        if grant is not None:
            assert grant.extra_bytes == extra_bytes
            assert len(set(grant.chunks)) == len(grant.chunks) == count
            assert self.chunks_pending.keys().isdisjoint(grant.chunks)
            assert not {c for g in self.grants for c in g.chunks} & set(grant.chunks)
            self.grants.append(grant)
            self.new_chunks.update(grant.chunks)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), ahead=st.integers(-1, 2))
    def free_adapter(self, data: st.DataObject, ahead: int) -> None:
        grant = data.draw(st.sampled_from(self.grants))
        self.grants.remove(grant)
        self.books.free_adapter(grant, self.done + ahead)
        if ahead > 0:
            self.chunks_pending |= dict.fromkeys(grant.chunks, self.done + ahead)
            self.extras_pending.append((grant.extra_bytes, self.done + ahead))

    @rule(steps=st.integers(1, 2))
    def step_done(self, steps: int) -> None:
        self.done += steps
        self.books.step_done(self.done)
        self.pages_pending = {page: at for page, at in self.pages_pending.items() if at > self.done}
        self.chunks_pending = {chunk: at for chunk, at in self.chunks_pending.items() if at > self.done}
        self.extras_pending = [(size, at) for size, at in self.extras_pending if at > self.done]

    @rule()
    def plan(self) -> None:
        """The device unloads, gives back what it is told to, and then writes all that it was given."""
        pages, chunks = self.books.idle()
        assert self.books.idle() == ((), ()), "told once"
        assert len(set(pages)) == len(pages)
        assert len(set(chunks)) == len(chunks)
        used_pages = self.held.keys() | self.pages_pending.keys()
        used_chunks = {c for grant in self.grants for c in grant.chunks} | self.chunks_pending.keys()
        assert (used_pages - self.new_pages).isdisjoint(pages), "what holds something keeps its memory"
        assert (used_chunks - self.new_chunks).isdisjoint(chunks)
        self.device_pages = (self.device_pages - set(pages)) | (used_pages & self.new_pages)
        self.device_chunks = (self.device_chunks - set(chunks)) | (used_chunks & self.new_chunks)
        self.new_pages, self.new_chunks = set(), set()
        assert used_pages <= self.device_pages
        assert used_chunks <= self.device_chunks
        physical = len(self.device_pages) * PAGE + len(self.device_chunks) * CHUNK + self.extras
        assert physical <= self.books.use().bytes_backed <= BUDGET

    @invariant()
    def books_balance(self) -> None:
        self.books.check_integrity()
        use, chunks_held = self.books.use(), sum(len(grant.chunks) for grant in self.grants)
        assert self.bytes_left >= 0
        assert (use.bytes_used, self.books.bytes_free) == (BUDGET - self.bytes_left, self.bytes_left)
        assert (use.pages_used, use.pages_pending, use.pages_promised) == (
            len(self.held),
            len(self.pages_pending),
            self.promised,
        )
        assert (use.chunks_used, use.chunks_pending) == (chunks_held, len(self.chunks_pending))
        pending = sum(size for size, _ in self.extras_pending)
        assert (use.extras_used, use.extras_pending) == (self.extras - pending, pending)
        assert (use.extras_free, self.books.extra_bytes_free) == (EXTRAS - self.extras, EXTRAS - self.extras)
        assert use.bytes_adapters == self.adapter_bytes <= ADAPTERS == BUDGET - 1200, "the floor of KV"
        assert self.books.adapter_bytes_free == ADAPTERS - self.adapter_bytes
        assert use.bytes_used <= BUDGET
        assert use.bytes_backed <= BUDGET
        assert self.books.page_ids_free == self.page_ids
        assert self.books.pages_promisable == min(self.page_ids, self.bytes_left // PAGE)
        assert all(self.books.references(PageId(page)) == self.held[PageId(page)] for page in range(16))
        assert self.books.awaits_step == bool(self.pages_pending or self.chunks_pending or pending)

    def teardown(self) -> None:
        for promise in self.promises:
            self.books.end_promise(promise)
        for page, count in self.held.items():
            for _ in range(count):
                self.books.drop_page(page, self.done + 1)
        for grant in self.grants:
            self.books.free_adapter(grant, self.done + 1)
        self.books.step_done(self.done + 2)
        use = self.books.use()
        assert (use.pages_free, use.chunks_free, use.extras_free, use.bytes_used) == (16, 7, EXTRAS, 0)
        self.books.check_integrity()


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)

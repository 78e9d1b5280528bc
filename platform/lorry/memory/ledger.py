"""The account of device memory: one byte budget for KV pages and adapter chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lorry.config import MemoryConfig
from lorry.errors import InternalError
from lorry.ids import ChunkId, PageId
from lorry.memory.arena import IdArena
from lorry.memory.budget import split_budget
from lorry.memory.eviction import EvictionClock, RestoreCosts


@dataclass(slots=True, eq=False)
class PagePromise:
    """The right to ``pages`` KV pages, taken one at a time. Made and changed by the ledger alone."""

    pages: int
    taken: int = 0
    open: bool = True

    @property
    def left(self) -> int:
        return self.pages - self.taken


@dataclass(frozen=True, slots=True)
class ChunkGrant:
    """Adapter chunks in rank order. ``contiguous``: ids are ``chunks[0], chunks[0] + 1, ...``."""

    chunks: tuple[ChunkId, ...]

    @property
    def contiguous(self) -> bool:
        return self.chunks == tuple(range(self.chunks[0], self.chunks[0] + len(self.chunks)))


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Counts at one moment. ``pages`` and ``chunks`` are the most that can be in use. ``pages_promised`` are spoken
    for by sequences and not taken yet. ``bytes_used``: taken, promised, or waiting for a step."""

    pages: int
    pages_free: int
    pages_pending: int
    pages_used: int
    pages_promised: int
    chunks: int
    chunks_free: int
    chunks_pending: int
    chunks_used: int
    bytes: int
    bytes_used: int
    bytes_backed: int


class MemoryLedger:
    """One byte budget, from which KV pages and adapter chunks both take (``split_budget`` has the bounds).

    Two laws hold at all times. What is taken, pending or promised fits the budget. What is *backed*, that is, has
    physical memory behind it, fits the budget too: a free page keeps its memory until the other kind wants the bytes;
    ``idle`` then names it, and the device gives its memory back before the step that uses them.

    A page has references: of the block tables that it is in, and of the prefix index. A sequence is promised the
    pages that it needs before it is admitted and takes from the promise. A free carries the last step that may touch
    the memory and is usable only after ``step_done`` of it. Not thread-safe: it belongs to the thread that plans steps.
    """

    def __init__(
        self,
        config: MemoryConfig,
        page_bytes: int,
        chunk_bytes: int,
        context_tokens: int,
        costs: RestoreCosts | None = None,
    ) -> None:
        """Bytes are of one KV page over all layers, and of one chunk (``chunk_rank`` rank rows of every
        site). Raises InvalidRequest for a budget that cannot serve the largest adapter and one longest
        sequence."""
        self.config = config
        self.split = split_budget(config, page_bytes, chunk_bytes, context_tokens)
        self.costs = costs or RestoreCosts()
        self.eviction = EvictionClock()
        self._pages = IdArena("KV page", self.split.pages)
        self._chunks = IdArena("adapter chunk", self.split.chunks)
        self._references = [0] * self.split.pages
        self._last_step = [-1] * self.split.pages
        self._promises: dict[int, PagePromise] = {}
        self._reserved = 0
        self._done_step = -1
        self._idle_pages: list[PageId] = []
        self._idle_chunks: list[ChunkId] = []

    @property
    def done_step(self) -> int:
        """The last step known to be done, -1 before the first."""
        return self._done_step

    @property
    def bytes_free(self) -> int:
        """Neither taken nor pending nor promised."""
        split, pages, chunks = self.split, self._pages, self._chunks
        in_pages = (pages.size - pages.free + self._reserved) * split.page_bytes
        return split.budget_bytes - in_pages - (chunks.size - chunks.free) * split.chunk_bytes

    @property
    def page_ids_free(self) -> int:
        """Free pages that no promise speaks for, whatever their bytes."""
        return self._pages.free - self._reserved

    @property
    def pages_promisable(self) -> int:
        return min(self.page_ids_free, self.bytes_free // self.split.page_bytes)

    @property
    def awaits_step(self) -> bool:
        """Some memory will be free when a step that is under way is done."""
        return self._pages.pending > 0 or self._chunks.pending > 0

    @property
    def chunk_ids_free(self) -> int:
        """Free chunks under the adapters' ceiling, whatever their bytes."""
        return self._chunks.free

    def pages_for(self, tokens: int) -> int:
        """ceil(tokens / page_tokens)."""
        return -(-tokens // self.config.page_tokens)

    def chunks_for(self, rank: int) -> int:
        """ceil(rank / chunk_rank)."""
        return -(-rank // self.config.chunk_rank)

    def promise_pages(self, count: int) -> PagePromise | None:
        """None if fewer than ``count`` pages can be promised now."""
        if count > self.pages_promisable:
            return None
        promise = PagePromise(count)
        self._promises[id(promise)] = promise
        self._reserved += count
        return promise

    def widen_promise(self, promise: PagePromise, count: int = 1) -> bool:
        """False, and nothing changed, if ``count`` more pages cannot be promised now."""
        if not promise.open:
            raise InternalError("a promise of KV pages was widened after its end")
        if count > self.pages_promisable:
            return False
        promise.pages += count
        self._reserved += count
        return True

    def take_page(self, promise: PagePromise) -> PageId:
        """The lowest free page, out of the promise, with one reference. Raises InternalError beyond the promise."""
        if not promise.open or promise.left < 1:
            raise InternalError(f"a sequence wanted more than the {promise.pages} KV pages that it was promised")
        taken = self._pages.take(1)
        if taken is None:
            raise InternalError("no KV page is free although one was promised")
        promise.taken += 1
        self._reserved -= 1
        self._back(self._pages, taken, self.split.page_bytes)
        page = PageId(taken[0])
        self._references[page], self._last_step[page] = 1, -1
        return page

    def end_promise(self, promise: PagePromise) -> None:
        """What was not taken is free at once. Taken pages have their own references."""
        if not promise.open:
            raise InternalError("a promise of KV pages was ended twice")
        promise.open = False
        del self._promises[id(promise)]
        self._reserved -= promise.left

    def references(self, page: PageId) -> int:
        return self._references[page]

    def share_page(self, page: PageId) -> None:
        """One reference more, of a page that has one."""
        if self._references[page] < 1:
            raise InternalError(f"KV page {page} was shared although nobody has it")
        self._references[page] += 1

    def drop_page(self, page: PageId, at_step: int) -> None:
        """One reference less; ``at_step`` is the last step in which its holder touched the page. Without any the page
        is free once every such step is done. Raises InternalError where there is none left."""
        if self._references[page] < 1:
            raise InternalError(f"KV page {page} was dropped although nobody has it; an owner dropped it twice")
        self._references[page] -= 1
        self._last_step[page] = max(self._last_step[page], at_step)
        if not self._references[page]:
            self._pages.release((page,), self._last_step[page])

    def take_chunks(self, count: int) -> ChunkGrant | None:
        """A contiguous run if there is one (best fit, lowest), else the lowest free ids; None if fewer are
        free or their bytes are not. Raises InternalError for ``count`` < 1."""
        if count < 1:
            raise InternalError(f"{count} adapter chunks were asked for; an adapter has at least one")
        if count * self.split.chunk_bytes > self.bytes_free:
            return None
        taken = self._chunks.take_run(count)
        if taken is None:
            return None
        self._back(self._chunks, taken, self.split.chunk_bytes)
        return ChunkGrant(tuple(ChunkId(c) for c in taken))

    def free_chunks(self, grant: ChunkGrant, at_step: int) -> None:
        self._chunks.release(grant.chunks, at_step)

    def step_done(self, step: int) -> None:
        """Step ``step`` and all before it are done on the device."""
        self._done_step = max(self._done_step, step)
        self._pages.step_done(step)
        self._chunks.step_done(step)

    def idle(self) -> tuple[tuple[PageId, ...], tuple[ChunkId, ...]]:
        """Pages and chunks whose memory is to be given back before anything of the next step is written; each is told
        once. One that was taken again since is among them."""
        pages, chunks = tuple(dict.fromkeys(self._idle_pages)), tuple(dict.fromkeys(self._idle_chunks))
        self._idle_pages.clear()
        self._idle_chunks.clear()
        return pages, chunks

    def use(self) -> MemoryUse:
        return MemoryUse(
            pages=self._pages.size,
            pages_free=self._pages.free,
            pages_pending=self._pages.pending,
            pages_used=self._pages.used,
            pages_promised=self._reserved,
            chunks=self._chunks.size,
            chunks_free=self._chunks.free,
            chunks_pending=self._chunks.pending,
            chunks_used=self._chunks.used,
            bytes=self.split.budget_bytes,
            bytes_used=self.split.budget_bytes - self.bytes_free,
            bytes_backed=self._bytes_backed,
        )

    def check_integrity(self) -> None:
        """Raises InternalError where the books do not balance."""
        self._pages.check_integrity()
        self._chunks.check_integrity()
        if self._reserved != sum(p.left for p in self._promises.values()):
            raise InternalError("the count of promised KV pages differs from the promises")
        if self._reserved > self._pages.free:
            raise InternalError(f"{self._reserved} KV pages are promised but {self._pages.free} are free")
        if any(count < 0 for count in self._references):
            raise InternalError("a KV page has fewer references than none")
        if sum(1 for count in self._references if count) != self._pages.used:
            raise InternalError("a KV page is taken and nobody has it, or the other way round")
        if self.bytes_free < 0:
            raise InternalError(f"{-self.bytes_free} bytes more than the budget are in use or promised")
        for arena in (self._pages, self._chunks):
            if arena.bare():
                raise InternalError(f"{arena.name} {arena.bare()[0]} is in use without memory behind it")
        if self._bytes_backed > self.split.budget_bytes:
            raise InternalError(f"{self._bytes_backed} bytes have memory behind them, more than the budget")

    @property
    def _bytes_backed(self) -> int:
        return self._pages.backed * self.split.page_bytes + self._chunks.backed * self.split.chunk_bytes

    def _back(self, arena: IdArena, ids: Iterable[int], piece_bytes: int) -> None:
        """Put memory behind ids that were just taken. What is in use fits the budget, so what is missing lies behind
        free ids: of the other kind first, then the highest of the same."""
        fresh = arena.back(ids)
        if not fresh:
            return
        over = self._bytes_backed - self.split.budget_bytes
        kinds = [(self._pages, self.split.page_bytes), (self._chunks, self.split.chunk_bytes)]
        for other, size in sorted(kinds, key=lambda kind: kind[0] is arena):
            if over <= 0:
                break
            given = other.unback(-(-over // size))
            over -= len(given) * size
            if other is self._pages:
                self._idle_pages.extend(PageId(page) for page in given)
            else:
                self._idle_chunks.extend(ChunkId(chunk) for chunk in given)
        if over > 0:
            raise InternalError(f"{over} bytes are backed over the budget and no free piece has them")


__all__ = ["ChunkGrant", "MemoryLedger", "MemoryUse", "PagePromise"]

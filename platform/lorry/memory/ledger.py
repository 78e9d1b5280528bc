"""The account of device memory: KV pages with promises, adapter chunks, frees that wait for a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from lorry.config import MemoryConfig
from lorry.errors import InternalError
from lorry.ids import ChunkId, PageId
from lorry.memory.arena import IdArena
from lorry.memory.budget import split_budget


@dataclass(slots=True, eq=False)
class PagePromise:
    """The right to ``pages`` KV pages, taken one at a time. Made and changed by the ledger alone."""

    pages: int
    taken: list[PageId] = field(default_factory=list)
    open: bool = True

    @property
    def left(self) -> int:
        return self.pages - len(self.taken)


@dataclass(frozen=True, slots=True)
class ChunkGrant:
    """Adapter chunks in rank order. ``contiguous``: ids are ``chunks[0], chunks[0] + 1, ...``."""

    chunks: tuple[ChunkId, ...]

    @property
    def contiguous(self) -> bool:
        return self.chunks == tuple(range(self.chunks[0], self.chunks[0] + len(self.chunks)))


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Counts at one moment. Of ``pages``: free + pending + used; of the free ones ``pages_promised`` are
    spoken for by running sequences."""

    pages: int
    pages_free: int
    pages_pending: int
    pages_used: int
    pages_promised: int
    chunks: int
    chunks_free: int
    chunks_pending: int
    chunks_used: int


class MemoryLedger:
    """One byte budget, split at start into KV pages and adapter chunks (see ``split_budget``).

    A sequence is promised its worst case before it is admitted and takes pages from that promise as it
    grows, so a running sequence never runs out: at all times free >= promised - taken over all promises.
    A free carries the last step that may touch the memory and is usable only after ``step_done`` of it.
    Not thread-safe: it belongs to the thread that plans steps.
    """

    def __init__(self, config: MemoryConfig, page_bytes: int, chunk_bytes: int, context_tokens: int) -> None:
        """Bytes are of one KV page over all layers, and of one chunk (``chunk_rank`` rank rows of every
        site). Raises InvalidRequest for a budget that cannot serve the largest adapter and one longest
        sequence."""
        self.config = config
        self.split = split_budget(config, page_bytes, chunk_bytes, context_tokens)
        self._pages = IdArena("KV page", self.split.pages)
        self._chunks = IdArena("adapter chunk", self.split.chunks)
        self._promises: dict[int, PagePromise] = {}
        self._reserved = 0
        self._done_step = -1

    @property
    def done_step(self) -> int:
        """The last step known to be done, -1 before the first."""
        return self._done_step

    @property
    def pages_promisable(self) -> int:
        """Free pages that no promise speaks for."""
        return self._pages.free - self._reserved

    @property
    def chunks_free(self) -> int:
        return self._chunks.free

    def pages_for(self, tokens: int) -> int:
        """ceil(tokens / page_tokens)."""
        return -(-tokens // self.config.page_tokens)

    def chunks_for(self, rank: int) -> int:
        """ceil(rank / chunk_rank)."""
        return -(-rank // self.config.chunk_rank)

    def promise_pages(self, count: int) -> PagePromise | None:
        """None if fewer than ``count`` free pages are unpromised now."""
        if count > self.pages_promisable:
            return None
        promise = PagePromise(count)
        self._promises[id(promise)] = promise
        self._reserved += count
        return promise

    def take_page(self, promise: PagePromise) -> PageId:
        """The lowest free page, out of the promise. Raises InternalError beyond the promise."""
        if not promise.open or promise.left < 1:
            raise InternalError(f"a sequence wanted more than the {promise.pages} KV pages that it was promised")
        taken = self._pages.take(1)
        if taken is None:
            raise InternalError("no KV page is free although one was promised")
        page = PageId(taken[0])
        promise.taken.append(page)
        self._reserved -= 1
        return page

    def end_promise(self, promise: PagePromise, at_step: int) -> None:
        """Give back the pages (usable once ``at_step`` is done) and what was not taken (at once)."""
        if not promise.open:
            raise InternalError("a promise of KV pages was ended twice")
        promise.open = False
        del self._promises[id(promise)]
        self._reserved -= promise.left
        self._pages.release(promise.taken, at_step)

    def take_chunks(self, count: int) -> ChunkGrant | None:
        """A contiguous run if there is one (best fit, lowest), else the lowest free ids; None if fewer are
        free. Raises InternalError for ``count`` < 1."""
        if count < 1:
            raise InternalError(f"{count} adapter chunks were asked for; an adapter has at least one")
        taken = self._chunks.take_run(count)
        return None if taken is None else ChunkGrant(tuple(ChunkId(c) for c in taken))

    def free_chunks(self, grant: ChunkGrant, at_step: int) -> None:
        self._chunks.release(grant.chunks, at_step)

    def step_done(self, step: int) -> None:
        """Step ``step`` and all before it are done on the device."""
        self._done_step = max(self._done_step, step)
        self._pages.step_done(step)
        self._chunks.step_done(step)

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
        )

    def check_integrity(self) -> None:
        """Raises InternalError where the books do not balance."""
        self._pages.check_integrity()
        self._chunks.check_integrity()
        promises = self._promises.values()
        if self._reserved != sum(p.left for p in promises):
            raise InternalError("the count of promised KV pages differs from the promises")
        if self._reserved > self._pages.free:
            raise InternalError(f"{self._reserved} KV pages are promised but {self._pages.free} are free")
        owned = [page for p in promises for page in p.taken]
        if len(owned) != len(set(owned)) or len(owned) != self._pages.used:
            raise InternalError("a KV page is owned by two promises or by none")


__all__ = ["ChunkGrant", "MemoryLedger", "MemoryUse", "PagePromise"]

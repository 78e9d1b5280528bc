"""The account of device memory: one byte budget for KV pages, adapter chunks and adapters' extras."""

from __future__ import annotations

from lorry.config import MemoryConfig
from lorry.errors import InternalError
from lorry.ids import ChunkId, PageId
from lorry.memory.arena import IdArena
from lorry.memory.budget import split_budget
from lorry.memory.eviction import EvictionClock, RestoreCosts
from lorry.memory.grants import AdapterGrant, AdapterNeed, MemoryUse, PagePromise
from lorry.memory.pool import BytePool


class MemoryLedger:
    """One byte budget, from which KV pages, adapter chunks and adapters' extras take (``split_budget`` has the bounds).

    Three laws hold at all times. What is taken, pending or promised fits the budget. What is *backed*, that is, has
    physical memory behind it, fits the budget too: a free page or chunk keeps its memory until another kind wants the
    bytes; ``idle`` then names it, and the device gives its memory back before the step that uses them. Extras are
    backed as long as they are taken or pending. And adapters, chunks and extras together, leave the KV pages' floor.

    A page has references: of the block tables that it is in, and of the prefix index. A sequence is promised the
    pages that it needs before it is admitted and takes from the promise. An adapter gets its chunks and its extras'
    bytes in one grant. A free carries the last step that may touch the memory and is usable only after ``step_done``
    of it. Not thread-safe: it belongs to the thread that plans steps.
    """

    def __init__(
        self,
        config: MemoryConfig,
        page_bytes: int,
        chunk_bytes: int,
        context_tokens: int,
        costs: RestoreCosts | None = None,
        largest_chunks: int | None = None,
    ) -> None:
        """Bytes are of one KV page over all layers, and of one chunk: ``chunk_rank`` rank rows of every site, or
        whatever the device's images are cut into, of which the largest adapter has ``largest_chunks``. Raises
        InvalidRequest for a budget that cannot serve the largest adapter and one longest sequence."""
        self.config = config
        self.split = split_budget(config, page_bytes, chunk_bytes, context_tokens, largest_chunks)
        self.costs = costs or RestoreCosts()
        self.eviction = EvictionClock()
        self._pages = IdArena("KV page", self.split.pages)
        self._chunks = IdArena("adapter chunk", self.split.chunks)
        self._extras = BytePool("adapters' extras", self.split.extras_bytes)
        self._grants: set[AdapterGrant] = set()
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
        in_chunks = (chunks.size - chunks.free) * split.chunk_bytes
        return split.budget_bytes - in_pages - in_chunks - self._extras.held

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
        return self._pages.pending > 0 or self._chunks.pending > 0 or self._extras.pending > 0

    @property
    def chunk_ids_free(self) -> int:
        """Free chunks under the adapters' ceiling, whatever their bytes."""
        return self._chunks.free

    @property
    def extra_bytes_free(self) -> int:
        """Bytes for extras under their cap, whatever the budget."""
        return self._extras.free

    @property
    def adapter_bytes_free(self) -> int:
        """Bytes for chunks and extras together that leave the KV pages' floor, whatever the budget."""
        chunks = self._chunks
        return self.split.adapter_bytes - (chunks.size - chunks.free) * self.split.chunk_bytes - self._extras.held

    def pages_for(self, tokens: int) -> int:
        """ceil(tokens / page_tokens)."""
        return -(-tokens // self.config.page_tokens)

    def chunks_for(self, rank: int) -> int:
        """ceil(rank / chunk_rank)."""
        return -(-rank // self.config.chunk_rank)

    def bytes_of(self, need: AdapterNeed) -> int:
        """Of its chunks and its extras."""
        return need.chunks * self.split.chunk_bytes + need.extra_bytes

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
        if self._pages.back(taken):
            self._fit_backing(self._pages)
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

    def take_adapter(self, need: AdapterNeed) -> AdapterGrant | None:
        """Memory for one adapter, all or nothing: a contiguous run of chunks if there is one (best fit, lowest), else
        the lowest free ids, and the bytes of its extras. None where chunks or extras are not free under their bounds,
        or the bytes are not. Raises InternalError for a negative need."""
        if min(need) < 0:
            raise InternalError(f"an adapter asked for {need.chunks} chunks and {need.extra_bytes} bytes of extras")
        size = self.bytes_of(need)
        if size > self.bytes_free or size > self.adapter_bytes_free or need.extra_bytes > self._extras.free:
            return None
        taken = self._chunks.take_run(need.chunks) if need.chunks else ()
        if taken is None:
            return None
        self._extras.take(need.extra_bytes)
        self._chunks.back(taken)
        self._fit_backing(self._chunks)
        grant = AdapterGrant(tuple(ChunkId(c) for c in taken), need.extra_bytes)
        self._grants.add(grant)
        return grant

    def free_adapter(self, grant: AdapterGrant, at_step: int) -> None:
        """``at_step`` is the last step that may read the adapter. Raises InternalError for a grant that is not out."""
        if grant not in self._grants:
            raise InternalError(
                f"adapter chunks {list(grant.chunks)} and {grant.extra_bytes} bytes of extras were freed but are not "
                "taken; an owner freed them twice"
            )
        self._grants.remove(grant)
        self._chunks.release(grant.chunks, at_step)
        self._extras.release(grant.extra_bytes, at_step)

    def step_done(self, step: int) -> None:
        """Step ``step`` and all before it are done on the device."""
        self._done_step = max(self._done_step, step)
        self._pages.step_done(step)
        self._chunks.step_done(step)
        self._extras.step_done(step)

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
            extras=self._extras.cap,
            extras_free=self._extras.free,
            extras_pending=self._extras.pending,
            extras_used=self._extras.used,
            bytes=self.split.budget_bytes,
            bytes_used=self.split.budget_bytes - self.bytes_free,
            bytes_backed=self._bytes_backed,
            bytes_adapters=self.split.adapter_bytes - self.adapter_bytes_free,
            bytes_adapters_most=self.split.adapter_bytes,
        )

    def check_integrity(self) -> None:
        """Raises InternalError where the books do not balance."""
        self._pages.check_integrity()
        self._chunks.check_integrity()
        self._extras.check_integrity()
        if self._reserved != sum(p.left for p in self._promises.values()):
            raise InternalError("the count of promised KV pages differs from the promises")
        if self._reserved > self._pages.free:
            raise InternalError(f"{self._reserved} KV pages are promised but {self._pages.free} are free")
        if any(count < 0 for count in self._references):
            raise InternalError("a KV page has fewer references than none")
        if sum(1 for count in self._references if count) != self._pages.used:
            raise InternalError("a KV page is taken and nobody has it, or the other way round")
        if sum(len(grant.chunks) for grant in self._grants) != self._chunks.used:
            raise InternalError("an adapter chunk is taken and no grant has it, or the other way round")
        if sum(grant.extra_bytes for grant in self._grants) != self._extras.used:
            raise InternalError("bytes of extras are taken and no grant has them, or the other way round")
        if self.adapter_bytes_free < 0:
            raise InternalError(f"adapters have {-self.adapter_bytes_free} bytes of the KV pages' floor")
        if self.bytes_free < 0:
            raise InternalError(f"{-self.bytes_free} bytes more than the budget are in use or promised")
        for arena in (self._pages, self._chunks):
            if arena.bare():
                raise InternalError(f"{arena.name} {arena.bare()[0]} is in use without memory behind it")
        if self._bytes_backed > self.split.budget_bytes:
            raise InternalError(f"{self._bytes_backed} bytes have memory behind them, more than the budget")

    @property
    def _bytes_backed(self) -> int:
        split = self.split
        return self._pages.backed * split.page_bytes + self._chunks.backed * split.chunk_bytes + self._extras.held

    def _fit_backing(self, wanted: IdArena) -> None:
        """More is backed now, of ``wanted`` or of extras. What is in use fits the budget, so what is over lies behind
        free ids: take it from the other arena first, then from the highest ids of the same."""
        over = self._bytes_backed - self.split.budget_bytes
        kinds = [(self._pages, self.split.page_bytes), (self._chunks, self.split.chunk_bytes)]
        for arena, size in sorted(kinds, key=lambda kind: kind[0] is wanted):
            if over <= 0:
                return
            given = arena.unback(-(-over // size))
            over -= len(given) * size
            if arena is self._pages:
                self._idle_pages.extend(PageId(page) for page in given)
            else:
                self._idle_chunks.extend(ChunkId(chunk) for chunk in given)
        if over > 0:
            raise InternalError(f"{over} bytes are backed over the budget and no free piece has them")


__all__ = ["MemoryLedger"]

"""Full KV pages that hold known prefixes: found by key, shared by reference, evicted by worth."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from lorry.errors import InternalError
from lorry.ids import AdapterKey, PageId
from lorry.kvcache.prefix import BlockHash
from lorry.memory import MemoryLedger


@dataclass(slots=True, eq=False)
class Block:
    """One full page of one prefix. ``users``: sequences that have it in their table. ``dropped``: no longer found,
    and gone when its last user is. ``turn`` counts up over all releases; among those that can go, rows of a block
    with another turn are stale."""

    key: BlockHash
    parent: Block | None
    page: PageId
    adapter: AdapterKey | None
    worth: float
    users: int = 0
    children: int = 0
    last_step: int = -1
    dropped: bool = False
    turn: int = 0

    @property
    def can_go(self) -> bool:
        return not (self.dropped or self.users or self.children)


class PrefixIndex:
    """Why not a dict of pages with a least recently used list: blocks form chains, and one that others continue must
    stay, or they could not be found. So only a block without users and without children can go; the least worth of
    these goes first (``EvictionClock``), the longest unused among equals. Who uses a block uses all before it,
    therefore what has no users will be able to go in the end, and ``evictable`` counts it.

    The index has one reference on each of its pages; each user's table has its own. Not thread-safe.
    """

    def __init__(self, ledger: MemoryLedger) -> None:
        self._ledger = ledger
        self._blocks: dict[BlockHash, Block] = {}
        self._by_adapter: dict[AdapterKey | None, set[Block]] = {}
        self._leaves: list[tuple[float, int, Block]] = []
        self._turns = 0
        self._evictable = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def evictable(self) -> int:
        """Pages that have no users."""
        return self._evictable

    def acquire(self, keys: Sequence[BlockHash]) -> list[Block]:
        """The longest leading run of ``keys`` that is there; the caller uses these blocks until ``release``."""
        found: list[Block] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                break
            self._use(block)
            found.append(block)
        return found

    def publish(self, key: BlockHash, parent: Block | None, page: PageId, adapter: AdapterKey | None) -> Block | None:
        """Make a full page findable, used by the caller, who has it in its table and uses ``parent``.

        Where the key is known already that block is returned (with another page, which the caller takes instead). None
        if the parent was dropped: what follows it is not to be found either.
        """
        if parent is not None and parent.dropped:
            return None
        block = self._blocks.get(key)
        if block is None:
            block = Block(key, parent, page, adapter, self._worth())
            self._ledger.share_page(page)
            self._blocks[key] = block
            self._by_adapter.setdefault(adapter, set()).add(block)
            if parent is not None:
                parent.children += 1
            self._evictable += 1
        self._use(block)
        return block

    def release(self, blocks: Sequence[Block], at_step: int, *, forget: bool = False) -> None:
        """The caller uses these blocks, a whole chain from its first, no more; ``at_step`` is the last step that read
        them. ``forget``: those that nobody else uses are of no use to anybody."""
        worth = self._worth()
        for block in reversed(blocks):
            if block.users < 1:
                raise InternalError(f"KV page {block.page} of the prefix index was released once too often")
            block.users -= 1
            block.last_step = max(block.last_step, at_step)
            self._turns += 1
            block.worth, block.turn = worth, self._turns
            if block.users or block.dropped:
                continue
            self._evictable += 1
            if forget and not block.children:
                self._remove(block)
            elif not block.children:
                self._push(block)

    def cheapest(self) -> float | None:
        """What the next block to go is worth; None where there is none, or a step that reads it is under way."""
        while self._leaves:
            worth, turn, block = self._leaves[0]
            if not block.can_go or block.turn != turn:
                heapq.heappop(self._leaves)
                continue
            return worth if block.last_step <= self._ledger.done_step else None
        return None

    @property
    def awaits_step(self) -> bool:
        """A block could go if a step that read it were done."""
        return self.cheapest() is None and bool(self._leaves)

    def evict(self) -> None:
        """Let the block of ``cheapest`` go."""
        if self.cheapest() is None:
            raise InternalError("the prefix index has no block that can go")
        worth, _, block = heapq.heappop(self._leaves)
        self._ledger.eviction.evicted(worth)
        self.evictions += 1
        self._remove(block)

    def drop(self, adapter: AdapterKey) -> int:
        """Nothing that was computed with this adapter is found any more: its weights on the device were damaged, or it
        is to be forgotten. Answers the number of pages."""
        dropped = self._by_adapter.pop(adapter, set())
        for block in dropped:
            del self._blocks[block.key]
            block.dropped = True
            self._evictable -= not block.users
            self._ledger.drop_page(block.page, block.last_step)
        return len(dropped)

    def pages(self) -> set[PageId]:
        """Pages that the index has a reference on."""
        return {block.page for block in self._blocks.values()}

    def check_integrity(self) -> None:
        """Raises InternalError where users, children and references contradict each other."""
        children: dict[BlockHash, int] = {}
        for block in self._blocks.values():
            if block.parent is not None:
                if block.parent.dropped or self._blocks.get(block.parent.key) is not block.parent:
                    raise InternalError(f"KV page {block.page}: its block follows one that is gone")
                if block.users > block.parent.users:
                    raise InternalError(f"KV page {block.page}: its block has users that the one before has not")
                children[block.parent.key] = children.get(block.parent.key, 0) + 1
            if self._ledger.references(block.page) < 1 + block.users:
                raise InternalError(f"KV page {block.page} has fewer references than its block has users")
        if any(block.children != children.get(key, 0) for key, block in self._blocks.items()):
            raise InternalError("a block of the prefix index counts its children wrongly")
        if len(self.pages()) != len(self._blocks):
            raise InternalError("two blocks of the prefix index have one KV page")
        if self._evictable != sum(1 for block in self._blocks.values() if not block.users):
            raise InternalError("the prefix index counts what can go wrongly")
        if sum(len(blocks) for blocks in self._by_adapter.values()) != len(self._blocks):
            raise InternalError("the prefix index files a block under no adapter, or under two")
        leaves = {block.key for _, turn, block in self._leaves if not block.dropped and turn == block.turn}
        idle = {key for key, block in self._blocks.items() if block.can_go}
        if not idle <= leaves:
            raise InternalError("the prefix index has a block that could go and is not found")

    def _worth(self) -> float:
        ledger = self._ledger
        restore = ledger.config.page_tokens * ledger.costs.prefill_s_per_token
        return ledger.eviction.worth(restore, ledger.split.page_bytes)

    def _use(self, block: Block) -> None:
        if not block.users:
            self._evictable -= 1
        block.users += 1

    def _push(self, block: Block) -> None:
        if len(self._leaves) > 4 * len(self._blocks) + 1024:
            self._leaves = [row for row in self._leaves if row[2].can_go and row[1] == row[2].turn]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (block.worth, block.turn, block))

    def _remove(self, block: Block) -> None:
        del self._blocks[block.key]
        self._by_adapter[block.adapter].discard(block)
        if not self._by_adapter[block.adapter]:
            del self._by_adapter[block.adapter]
        block.dropped = True
        self._evictable -= 1
        self._ledger.drop_page(block.page, block.last_step)
        parent = block.parent
        if parent is not None:
            parent.children -= 1
            if not parent.users and not parent.children and not parent.dropped:
                self._push(parent)


__all__ = ["Block", "PrefixIndex"]

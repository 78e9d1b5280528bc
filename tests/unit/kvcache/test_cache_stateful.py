"""Block tables and prefix index together, in any order, against a model: which keys are found, who refers to which
page, and what each page holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, PageId, SequenceId
from lorry.kvcache import Block, BlockHash, BlockTables, PrefixIndex, block_hash
from tests.unit.kvcache.books import books

PAGES, PAGE_TOKENS = 12, 2
ADAPTERS = [None, *(AdapterKey(AdapterDigest(name), AdapterScope(scope)) for name, scope in ("ax", "ay", "bx"))]
Content = tuple[AdapterKey | None, tuple[int, ...]]
"""What a full page holds: it depends on the adapter and on all ids up to its end."""


@dataclass
class User:
    sequence: SequenceId
    adapter: AdapterKey | None
    ids: tuple[int, ...]
    keys: list[BlockHash]
    blocks: list[Block] = field(default_factory=list)
    dropped: bool = False

    def content(self, number: int) -> Content:
        return self.adapter, self.ids[: (number + 1) * PAGE_TOKENS]


class CacheMachine(RuleBasedStateMachine):
    """``found``: the page under each key. ``content``: of full pages, as written."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = books(PAGES, PAGE_TOKENS)
        self.tables = BlockTables(self.ledger)
        self.index = PrefixIndex(self.ledger)
        self.users: list[User] = []
        self.found: dict[BlockHash, PageId] = {}
        self.parents: dict[BlockHash, BlockHash | None] = {}
        self.owners: dict[BlockHash, AdapterKey | None] = {}
        self.last: dict[BlockHash, int] = {}
        self.content: dict[PageId, Content] = {}
        self.count = 0
        self.done = -1

    def _users_of(self, key: BlockHash) -> int:
        return sum(key in user.keys[: len(user.blocks)] for user in self.users if not user.dropped)

    def _can_go(self, key: BlockHash) -> bool:
        return not self._users_of(key) and key not in self.parents.values()

    def _lose(self, key: BlockHash) -> None:
        del self.found[key], self.parents[key], self.owners[key], self.last[key]

    @rule(
        adapter=st.sampled_from(ADAPTERS), ids=st.lists(st.integers(0, 1), min_size=1, max_size=9), grow=st.booleans()
    )
    def start(self, adapter: AdapterKey | None, ids: list[int], grow: bool) -> None:
        """It finds what it can and makes room for the rest, by eviction if need be; else it changes nothing."""
        key, keys = BlockHash("@".join(adapter or ("base",)).ljust(32).encode()), []
        for number in range(len(ids) // PAGE_TOKENS):
            key = block_hash(key, ids[number * PAGE_TOKENS : (number + 1) * PAGE_TOKENS])
            keys.append(key)
        user = User(SequenceId(self.count), adapter, tuple(ids), keys)
        self.count += 1
        expected = next((n for n, key in enumerate(keys) if key not in self.found), len(keys))
        blocks = self.index.acquire(keys)
        assert [block.page for block in blocks] == [self.found[key] for key in keys[:expected]]
        assert all(self.content[block.page] == user.content(n) for n, block in enumerate(blocks))
        user.blocks = blocks
        self.users.append(user)
        own = self.ledger.pages_for(len(ids)) - len(blocks)
        while self.ledger.pages_promisable < own and self.index.cheapest() is not None:
            self.evict()
        if not self.tables.open(user.sequence, own, [block.page for block in blocks]):
            assert self.ledger.pages_promisable < own
            self.index.release(blocks, -1)
            self.users.remove(user)
        elif grow:
            self.compute(user)

    @precondition(lambda self: self.users)
    @rule(data=st.data(), most=st.integers(1, 5))
    def grow(self, data: st.DataObject, most: int) -> None:
        self.compute(data.draw(st.sampled_from(self.users)), most)

    def compute(self, user: User, most: int = 5) -> None:
        """Write all positions, and publish some more of the full pages."""
        pages = self.tables.extend(user.sequence, len(user.ids))
        for number in range(len(user.blocks), len(user.keys)):
            self.content[pages[number]] = user.content(number)
        for number in range(len(user.blocks), min(len(user.blocks) + most, len(user.keys))):
            key = user.keys[number]
            held = self.tables.pages(user.sequence)[number]
            before = user.blocks[-1] if user.blocks else None
            block = self.index.publish(key, before, held, user.adapter)
            if user.dropped:
                assert block is None or before is None
                if block is None:
                    return
                user.dropped = False
            assert block is not None
            assert block.page == self.found.get(key, held)
            if key not in self.found:
                self.found[key], self.owners[key], self.last[key] = held, user.adapter, -1
                self.parents[key] = None if before is None else before.key
            if block.page != held:
                assert self.content[block.page] == self.content[held]
                self.tables.replace(user.sequence, number, block.page, self.done + 1)
            user.blocks.append(block)

    @precondition(lambda self: self.users)
    @rule(data=st.data(), ahead=st.integers(-1, 2), forget=st.booleans())
    def leave(self, data: st.DataObject, ahead: int, forget: bool) -> None:
        user = data.draw(st.sampled_from(self.users))
        self.index.release(user.blocks, self.done + ahead, forget=forget)
        self.tables.close(user.sequence, self.done + ahead)
        self.users.remove(user)
        for key in [] if user.dropped else reversed(user.keys[: len(user.blocks)]):
            self.last[key] = max(self.last[key], self.done + ahead)
            if forget and self._can_go(key):
                self._lose(key)

    @rule()
    def evict(self) -> None:
        """What goes has no users and nothing that follows it, and no step under way reads it."""
        if self.index.cheapest() is None:
            idle = [key for key in self.found if self._can_go(key)]
            assert not idle or any(self.last[key] > self.done for key in idle)
            return
        before = self.index.pages()
        self.index.evict()
        (page,) = before - self.index.pages()
        key = next(key for key, held in self.found.items() if held == page)
        assert self._can_go(key)
        assert self.last[key] <= self.done
        self._lose(key)

    @rule(adapter=st.sampled_from(ADAPTERS[1:]))
    def drop(self, adapter: AdapterKey) -> None:
        """Its users keep their pages, and nobody else finds them."""
        self.index.drop(adapter)
        for user in self.users:
            user.dropped |= user.adapter == adapter and bool(user.blocks)
        for key in [key for key, owner in self.owners.items() if owner == adapter]:
            self._lose(key)

    @rule(steps=st.integers(1, 2))
    def step_done(self, steps: int) -> None:
        self.done += steps
        self.ledger.step_done(self.done)

    @invariant()
    def nothing_is_lost_or_shared_wrongly(self) -> None:
        for owner in (self.ledger, self.tables, self.index):
            owner.check_integrity()
        assert len(self.index) == len(self.found)
        assert self.index.pages() == set(self.found.values())
        assert self.index.evictable == sum(not self._users_of(key) for key in self.found)
        references: dict[int, int] = dict.fromkeys(range(PAGES), 0)
        for page in self.found.values():
            references[page] += 1
        for user in self.users:
            for number, page in enumerate(self.tables.pages(user.sequence)):
                references[page] += 1
                if number < len(user.blocks):
                    assert user.blocks[number].page == page
                    assert self.content[page] == user.content(number)
        assert references == {page: self.ledger.references(PageId(page)) for page in range(PAGES)}

    def teardown(self) -> None:
        for user in self.users:
            self.index.release(user.blocks, self.done + 1)
            self.tables.close(user.sequence, self.done + 1)
        self.ledger.step_done(self.done + 2)
        assert self.index.evictable == len(self.index)
        while self.index.cheapest() is not None:
            self.index.evict()
            self.index.check_integrity()
        use = self.ledger.use()
        assert (len(self.index), use.pages_free, use.pages_promised) == (0, PAGES, 0)
        self.ledger.check_integrity()


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)

"""Cached prefixes: found by key, shared by reference, gone by worth and never while used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from lorry.errors import InternalError
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, PageId, SequenceId
from lorry.kvcache import Block, BlockHash, BlockTables, PrefixIndex, block_hash
from lorry.memory import MemoryLedger
from tests.unit.kvcache.books import books

A = AdapterKey(AdapterDigest("a"), AdapterScope("own"))


def chain(name: str, blocks: int) -> list[BlockHash]:
    """Keys of the blocks of one prefix."""
    keys = [block_hash(BlockHash(name.ljust(32).encode()), ())]
    for number in range(1, blocks):
        keys.append(block_hash(keys[-1], (number,)))
    return keys


class Bench:
    """One user at a time: each ``cache`` is a sequence that fills pages, publishes them, and is closed."""

    def __init__(self, pages: int = 8) -> None:
        self.ledger: MemoryLedger = books(pages)
        self.tables = BlockTables(self.ledger)
        self.index = PrefixIndex(self.ledger)
        self._sequences = 0

    def fill(self, keys: Sequence[BlockHash], adapter: AdapterKey | None = None) -> tuple[SequenceId, list[Block]]:
        """A sequence whose pages are these blocks; it uses them still."""
        self._sequences += 1
        sequence = SequenceId(self._sequences)
        blocks = self.index.acquire(keys)
        have = len(blocks)
        assert self.tables.open(sequence, len(keys) - have, [block.page for block in blocks])
        pages = self.tables.extend(sequence, 4 * len(keys))
        for number in range(have, len(keys)):
            before = blocks[-1] if blocks else None
            block = self.index.publish(keys[number], before, pages[number], adapter)
            assert block is not None
            blocks.append(block)
        self.check()
        return sequence, blocks

    def leave(self, user: tuple[SequenceId, list[Block]], at_step: int = -1, *, forget: bool = False) -> None:
        self.index.release(user[1], at_step, forget=forget)
        self.tables.close(user[0], at_step)
        self.check()

    def cache(self, keys: Sequence[BlockHash], adapter: AdapterKey | None = None, at_step: int = -1) -> None:
        self.leave(self.fill(keys, adapter), at_step)

    def found(self, keys: Sequence[BlockHash]) -> int:
        blocks = self.index.acquire(keys)
        self.index.release(blocks, -1)
        return len(blocks)

    def check(self) -> None:
        self.index.check_integrity()
        self.tables.check_integrity()
        self.ledger.check_integrity()


def test_the_longest_leading_run_is_found() -> None:
    bench, keys = Bench(), chain("x", 4)
    bench.cache(keys[:3])
    assert [bench.found(keys[:n]) for n in range(5)] == [0, 1, 2, 3, 3]
    assert bench.found(keys[1:]) == 2, "by key alone: a key says what came before it"
    assert bench.found(chain("y", 3)) == 0
    assert bench.found([chain("y", 1)[0], *keys]) == 0
    assert (len(bench.index), bench.index.evictable, bench.index.pages()) == (3, 3, {0, 1, 2})


def test_users_of_a_block_share_its_page_and_it_stays_when_they_leave() -> None:
    bench, keys = Bench(), chain("x", 2)
    one = bench.fill(keys)
    two = bench.fill(keys)
    assert [b.page for b in one[1]] == [b.page for b in two[1]] == [0, 1]
    assert bench.ledger.references(PageId(0)) == 3, "two tables and the index"
    assert bench.index.evictable == 0
    bench.leave(one)
    assert bench.index.evictable == 0
    bench.leave(two)
    assert (bench.index.evictable, bench.ledger.use().pages_used) == (2, 2)
    assert bench.found(keys) == 2


def test_what_is_published_is_not_there_before_and_a_known_key_answers_with_the_page_that_is_there() -> None:
    bench, keys = Bench(), chain("x", 1)
    one = bench.fill(keys)
    sequence = SequenceId(9)
    bench.tables.open(sequence, 1)
    (own,) = bench.tables.extend(sequence, 4)
    block = bench.index.publish(keys[0], None, own, None)
    assert block is one[1][0]
    assert (block.page, own, block.users) == (0, 1, 2)
    bench.tables.replace(sequence, 0, block.page, -1)
    bench.check()
    bench.leave(one)
    bench.leave((sequence, [block]))
    assert bench.ledger.use().pages_used == 1


def test_the_longest_unused_goes_first_and_the_end_of_a_chain_before_its_beginning() -> None:
    bench, old, new = Bench(), chain("old", 3), chain("new", 2)
    bench.cache(old)
    bench.cache(new)
    lost = []
    while bench.index.cheapest() is not None:
        bench.index.evict()
        bench.check()
        lost.append((bench.found(old), bench.found(new)))
        if len(lost) == 1:
            assert lost == [(2, 2)]
    assert lost[-1] == (0, 0)
    assert bench.index.evictions == 5
    assert bench.ledger.use().pages_free == 8


def test_among_equals_the_longest_unused_goes_first() -> None:
    """Nothing went yet, so that all are worth the same."""
    bench = Bench()
    first, second = chain("1", 1), chain("2", 1)
    bench.cache(first)
    bench.cache(second)
    assert bench.found(first) == 1
    bench.index.evict()
    assert (bench.found(first), bench.found(second)) == (1, 0)


def test_the_beginning_of_a_chain_has_the_age_of_its_last_use_not_of_its_continuations_end() -> None:
    bench = Bench()
    old, new = chain("old", 2), chain("new", 2)
    bench.cache(old)
    bench.cache(new)
    bench.index.evict()
    bench.index.evict()
    assert (bench.found(old), bench.found(new)) == (0, 2)


def test_what_was_used_since_something_went_outlives_what_was_not() -> None:
    bench = Bench()
    first, second, third = (chain(name, 1) for name in "123")
    for keys in (first, second, third):
        bench.cache(keys)
    bench.index.evict()
    assert bench.found(first) == 0
    assert bench.found(second) == 1, "used now"
    bench.index.evict()
    assert (bench.found(second), bench.found(third)) == (1, 0)


def test_what_went_raises_the_worth_of_what_is_used_after() -> None:
    bench = Bench()
    bench.cache(chain("1", 1))
    bench.cache(chain("2", 1))
    old = bench.index.cheapest()
    bench.index.evict()
    bench.found(chain("2", 1))
    assert old is not None
    assert bench.index.cheapest() == pytest.approx(2 * old)


def test_what_is_used_never_goes_nor_what_comes_before_it() -> None:
    bench, keys = Bench(), chain("x", 4)
    bench.cache(keys)
    user = bench.fill(keys[:2])
    for _ in range(2):
        bench.index.evict()
    assert bench.index.cheapest() is None
    with pytest.raises(InternalError, match="no block that can go"):
        bench.index.evict()
    bench.leave(user)
    assert bench.found(keys) == 2
    bench.index.evict()
    bench.index.evict()
    assert len(bench.index) == 0


def test_what_a_step_under_way_reads_does_not_go_before_it_is_done() -> None:
    bench, keys = Bench(), chain("x", 1)
    bench.cache(keys, at_step=4)
    assert (bench.index.cheapest(), bench.index.evictable) == (None, 1)
    assert bench.found(keys) == 1, "it can be used meanwhile"
    bench.ledger.step_done(3)
    assert bench.index.cheapest() is None
    bench.ledger.step_done(4)
    assert bench.index.cheapest() is not None
    bench.index.evict()
    assert bench.ledger.use().pages_free == 8


def test_a_released_chain_that_is_forgotten_is_gone_unless_others_use_it() -> None:
    bench, keys = Bench(), chain("x", 3)
    one, two = bench.fill(keys), bench.fill(keys[:2])
    bench.leave(one, forget=True)
    assert bench.found(keys) == 2, "the third was its own"
    bench.leave(two, 3, forget=True)
    assert (bench.found(keys), len(bench.index), bench.index.evictable) == (0, 0, 0)
    assert bench.ledger.use().pages_pending == 2
    bench.ledger.step_done(3)
    assert bench.ledger.use().pages_free == 8


def test_forgetting_keeps_what_others_continue() -> None:
    bench, keys = Bench(), chain("x", 3)
    bench.cache(keys)
    bench.leave(bench.fill(keys[:2]), forget=True)
    assert bench.found(keys) == 3


def test_nothing_of_a_dropped_adapter_is_found_and_its_pages_stay_with_their_users() -> None:
    bench, mine, other = Bench(), chain("x", 3), chain("y", 1)
    bench.cache(mine, A)
    bench.cache(other)
    user = bench.fill(mine[:2], A)
    bench.index.drop(A)
    bench.check()
    assert (bench.found(mine), bench.found(other)) == (0, 1)
    assert bench.ledger.use().pages_used == 3, "two are in the user's table"
    assert (len(bench.index), bench.index.evictable) == (1, 1)
    last = user[1][-1]
    assert bench.index.publish(mine[2], last, PageId(0), A) is None, "what follows a dropped block is not found either"
    again = bench.fill(mine, A)
    assert [block.page for block in again[1]] != [block.page for block in user[1]]
    bench.leave(user)
    assert bench.found(mine) == 3, "whoever computed them anew is not touched by the old users' end"
    bench.leave(again)
    bench.index.drop(A)
    bench.index.drop(A)
    assert bench.ledger.use().pages_used == 1


def test_releasing_once_too_often_is_an_error() -> None:
    bench, keys = Bench(), chain("x", 1)
    _, blocks = bench.fill(keys)
    bench.index.release(blocks, -1)
    with pytest.raises(InternalError, match="once too often"):
        bench.index.release(blocks, -1)


def test_stale_rows_do_not_pile_up() -> None:
    bench, keys = Bench(), chain("x", 1)
    bench.cache(keys)
    for _ in range(5000):
        bench.found(keys)
    assert len(bench.index._leaves) < 2000
    assert bench.index.cheapest() is not None


Damage = Callable[[PrefixIndex, list[Block]], None]


def _user_of_child_alone(index: PrefixIndex, blocks: list[Block]) -> None:
    blocks[2].users = 2


def _parent_gone(index: PrefixIndex, blocks: list[Block]) -> None:
    del index._blocks[blocks[0].key]


def _parent_dropped(index: PrefixIndex, blocks: list[Block]) -> None:
    blocks[0].dropped = True


def _reference_missing(index: PrefixIndex, blocks: list[Block]) -> None:
    for block in blocks:
        block.users = 3


def _children(index: PrefixIndex, blocks: list[Block]) -> None:
    blocks[0].children = 2


def _one_page_twice(index: PrefixIndex, blocks: list[Block]) -> None:
    blocks[0].page = blocks[1].page


def _evictable(index: PrefixIndex, blocks: list[Block]) -> None:
    index._evictable += 1


def _no_adapter(index: PrefixIndex, blocks: list[Block]) -> None:
    index._by_adapter[A].remove(blocks[0])


def _not_found_to_go(index: PrefixIndex, blocks: list[Block]) -> None:
    index._leaves.clear()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_user_of_child_alone, "users that the one before has not"),
        (_parent_gone, "follows one that is gone"),
        (_parent_dropped, "follows one that is gone"),
        (_reference_missing, "fewer references"),
        (_children, "children"),
        (_one_page_twice, "one KV page"),
        (_evictable, "counts what can go wrongly"),
        (_no_adapter, "under no adapter"),
        (_not_found_to_go, "could go and is not found"),
    ],
)
def test_the_integrity_check_sees(damage: Damage, words: str) -> None:
    bench, keys = Bench(), chain("x", 4)
    bench.cache(chain("y", 1))
    bench.cache(keys, A)
    _, blocks = bench.fill(keys[:3], A)
    bench.check()
    damage(bench.index, blocks)
    with pytest.raises(InternalError, match=words):
        bench.index.check_integrity()

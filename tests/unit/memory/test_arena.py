"""Lowest ids first, runs where there are runs, frees that wait, memory that is behind an id or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lorry.errors import InternalError
from lorry.memory import IdArena


def test_the_lowest_free_ids_are_taken() -> None:
    arena = IdArena("page", 8)
    assert arena.take(3) == (0, 1, 2)
    arena.release([1], at_step=-1)
    assert arena.take(2) == (1, 3)
    assert arena.take(5) is None
    assert arena.free == 4


def test_a_run_is_taken_from_the_smallest_hole_that_holds_it() -> None:
    arena = IdArena("chunk", 12)
    arena.take(12)
    arena.release([0, 2, 3, 4, 6, 7, 9, 10], at_step=-1)
    assert arena.take_run(2) == (6, 7), "the lowest of the smallest holes of two or more"
    assert arena.take_run(3) == (2, 3, 4)
    assert arena.take_run(2) == (9, 10)
    assert arena.take_run(1) == (0,)


def test_without_a_run_the_lowest_ids_are_taken() -> None:
    arena = IdArena("chunk", 8)
    arena.take(8)
    arena.release([7, 1, 3, 5], at_step=-1)
    assert arena.take_run(3) == (1, 3, 5)
    assert arena.take_run(2) is None


def test_a_free_is_usable_only_when_its_step_is_done() -> None:
    arena = IdArena("page", 2)
    arena.take(2)
    arena.release([0], at_step=4)
    arena.release([1], at_step=5)
    arena.step_done(3)
    assert (arena.free, arena.pending, arena.used) == (0, 2, 0)
    assert arena.take(1) is None
    arena.step_done(4)
    assert arena.take(1) == (0,)
    arena.release([0], at_step=4)
    assert arena.free == 1, "a step that is done already holds nothing back"


@pytest.mark.parametrize("piece", [0, 3, -1, 4])
def test_freeing_what_is_not_taken_is_an_error(piece: int) -> None:
    arena = IdArena("page", 4)
    arena.take(3)
    arena.release([0], at_step=9)
    with pytest.raises(InternalError, match=str(piece)):
        arena.release([piece], at_step=9)


def test_backing_is_counted_and_taken_from_the_highest_free_ids_alone() -> None:
    arena = IdArena("page", 6)
    assert arena.back(arena.take(5) or ()) == 5
    assert arena.back([0, 1, 5]) == 1, "those that were not backed"
    arena.release([1, 3], at_step=-1)
    arena.release([4], at_step=7)
    assert arena.unback(2) == (5, 3), "4 waits for its step: it is not free"
    assert arena.backed == 4
    assert arena.unback(9) == (1,)
    assert arena.unback(9) == ()
    arena.step_done(7)
    assert arena.unback(1) == (4,)
    arena.check_integrity()


def test_bare_ids_are_those_in_use_without_backing() -> None:
    arena = IdArena("page", 4)
    arena.take(3)
    assert arena.bare() == (0, 1, 2)
    arena.back([0, 1])
    arena.release([1, 2], at_step=5)
    assert arena.bare() == (2,), "3 is free; 2 waits for its step and may be written until then"
    arena.step_done(5)
    assert arena.bare() == ()
    arena.check_integrity()


def _two_states(arena: IdArena) -> None:
    arena._taken[5] = 1


def _no_state(arena: IdArena) -> None:
    arena._taken[0] = 0


def _pending_twice(arena: IdArena) -> None:
    arena._pending[6] = [2]


def _unsorted(arena: IdArena) -> None:
    arena._free.reverse()


def _backed_count(arena: IdArena) -> None:
    arena._backed[7] = 1


def _late(arena: IdArena) -> None:
    arena._done_step = 5


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_two_states, "no state or in two"),
        (_no_state, "no state or in two"),
        (_pending_twice, "no state or in two"),
        (_unsorted, "not sorted"),
        (_backed_count, "backed"),
        (_late, "waits for a step that is done"),
    ],
)
def test_the_integrity_check_sees(damage: Callable[[IdArena], None], words: str) -> None:
    arena = IdArena("page", 8)
    arena.back(arena.take(3) or ())
    arena.release([2], at_step=5)
    arena.check_integrity()
    damage(arena)
    with pytest.raises(InternalError, match=words):
        arena.check_integrity()


class ArenaMachine(RuleBasedStateMachine):
    """Against a set for each state."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = IdArena("piece", 24)
        self.free = set(range(24))
        self.taken: set[int] = set()
        self.pending: dict[int, int] = {}
        self.backed: set[int] = set()
        self.done = -1

    @rule(count=st.integers(1, 9), run=st.booleans())
    def take(self, count: int, run: bool) -> None:
        got = self.arena.take_run(count) if run else self.arena.take(count)
        if count > len(self.free):
            assert got is None
            return
        assert got is not None
        ordered = sorted(self.free)
        starts = [a for a in ordered if self.free.issuperset(range(a, a + count))]
        if run and starts:
            assert got == tuple(range(got[0], got[0] + count))
        else:
            assert list(got) == ordered[:count]
        assert self.free.issuperset(got)
        self.free -= set(got)
        self.taken |= set(got)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), ahead=st.integers(-1, 3))
    def release(self, data: st.DataObject, ahead: int) -> None:
        ids = data.draw(st.sets(st.sampled_from(sorted(self.taken)), min_size=1))
        self.arena.release(ids, self.done + ahead)
        self.taken -= ids
        if ahead > 0:
            self.pending |= dict.fromkeys(ids, self.done + ahead)
        else:
            self.free |= ids

    @rule(ids=st.sets(st.integers(0, 23)))
    def back(self, ids: set[int]) -> None:
        assert self.arena.back(sorted(ids)) == len(ids - self.backed)
        self.backed |= ids

    @rule(count=st.integers(0, 30))
    def unback(self, count: int) -> None:
        given = self.arena.unback(count)
        assert given == tuple(sorted(self.free & self.backed, reverse=True)[:count])
        self.backed -= set(given)

    @rule(steps=st.integers(1, 2))
    def step(self, steps: int) -> None:
        self.done += steps
        self.arena.step_done(self.done)
        usable = {piece for piece, at in self.pending.items() if at <= self.done}
        self.free |= usable
        for piece in usable:
            del self.pending[piece]

    @invariant()
    def counts(self) -> None:
        self.arena.check_integrity()
        assert (self.arena.free, self.arena.used, self.arena.pending) == (
            len(self.free),
            len(self.taken),
            len(self.pending),
        )
        assert self.arena.backed == len(self.backed)
        assert set(self.arena.bare()) == (self.taken | self.pending.keys()) - self.backed


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

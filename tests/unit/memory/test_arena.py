"""Lowest ids first, runs where there are runs, frees that wait."""

from __future__ import annotations

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


class ArenaMachine(RuleBasedStateMachine):
    """Against a set for each state."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = IdArena("piece", 24)
        self.free = set(range(24))
        self.taken: set[int] = set()
        self.pending: dict[int, int] = {}
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


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

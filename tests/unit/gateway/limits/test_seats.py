"""Seats: nobody waits who could sit, the first to come goes first, and whoever leaves leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lorry.gateway.limits.seats import SeatKeeper, Seats
from tests.support.waiting import end


async def settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_first_come_first_served() -> None:
    keeper, seats = SeatKeeper(), [Seats(1, 3)]
    assert keeper.take(seats)
    order: list[int] = []

    async def sit(number: int) -> None:
        await keeper.wait(seats)
        order.append(number)

    tasks = [asyncio.create_task(sit(number)) for number in range(3)]
    await settled()
    assert seats[0].full()
    assert keeper.waiting == 3
    for served in range(3):
        assert len(order) == served
        keeper.leave(seats)
        await settled()
    assert order == [0, 1, 2]
    assert (seats[0].taken, seats[0].queued, keeper.waiting) == (1, 0, 0)
    await asyncio.gather(*tasks)


async def test_who_gives_up_frees_its_place() -> None:
    keeper, seats = SeatKeeper(), [Seats(1, 1)]
    assert keeper.take(seats)
    task = asyncio.create_task(keeper.wait(seats))
    await settled()
    assert seats[0].full()
    await end(task)
    assert not seats[0].full()
    keeper.leave(seats)
    assert (seats[0].taken, seats[0].queued, len(seats[0].waiting)) == (0, 0, 0)


async def test_a_seat_that_comes_as_its_waiter_leaves_goes_to_the_next() -> None:
    keeper, seats = SeatKeeper(), [Seats(1, 2)]
    assert keeper.take(seats)
    first, second = (asyncio.create_task(keeper.wait(seats)) for _ in range(2))
    await settled()
    keeper.leave(seats)
    first.cancel()  # after it was seated, before it knows
    await settled()
    assert first.cancelled()
    assert second.done()
    assert seats[0].taken == 1
    keeper.leave(seats)
    assert (seats[0].taken, seats[0].queued) == (0, 0)


async def test_a_full_adapter_holds_up_no_other() -> None:
    keeper, tenant, full, other = SeatKeeper(), Seats(2, 5), Seats(1, 5), Seats(1, 5)
    assert keeper.take([tenant, full])
    waits = asyncio.create_task(keeper.wait([tenant, full]))
    await settled()
    assert tenant.queued == 0  # it waits for the adapter alone
    assert keeper.take([tenant, other])
    keeper.leave([tenant, full])
    await settled()
    assert waits.done()
    assert (tenant.taken, full.taken, other.taken) == (2, 1, 1)


async def test_who_waits_for_both_is_seated_whichever_comes_last() -> None:
    keeper, tenant, adapter, other = SeatKeeper(), Seats(2, 5), Seats(1, 5), Seats(9, 5)
    assert keeper.take([tenant, adapter])
    waits = asyncio.create_task(keeper.wait([tenant, adapter]))
    await settled()
    assert keeper.take([tenant, other])
    tenant.limit = 1
    keeper.leave([tenant, adapter])  # the adapter is free now, the tenant is not
    await settled()
    assert not waits.done()
    keeper.leave([tenant, other])
    await settled()
    assert waits.done()


@pytest.mark.parametrize("limit", [None, 3])
async def test_a_raised_limit_seats_those_that_wait(limit: int | None) -> None:
    keeper, seats = SeatKeeper(), [Seats(1, 9)]
    assert keeper.take(seats)
    tasks = [asyncio.create_task(keeper.wait(seats)) for _ in range(2)]
    await settled()
    seats[0].limit = limit
    keeper.look(seats)
    await settled()
    assert all(task.done() for task in tasks)
    assert seats[0].taken == 3


class Crowd(RuleBasedStateMachine):
    """A tenant's seats and those of two adapters, one of them without a quota of its own."""

    @initialize(limits=st.tuples(st.integers(1, 3), st.integers(1, 3)))
    def begin(self, limits: tuple[int, int]) -> None:
        self.runner = asyncio.Runner()
        self.keeper = SeatKeeper()
        self.tenant, self.adapter = Seats(limits[0], 4), Seats(limits[1], 4)
        self.kinds: list[Sequence[Seats]] = [[self.tenant], [self.tenant, self.adapter], [self.adapter]]
        self.waiting: list[tuple[int, asyncio.Task[None]]] = []
        self.seated: list[int] = []

    def step(self) -> None:
        self.runner.run(settled())
        self.seated += [kind for kind, task in self.waiting if task.done() and not task.cancelled()]
        self.waiting = [(kind, task) for kind, task in self.waiting if not task.done()]

    @rule(kind=st.integers(0, 2))
    def come(self, kind: int) -> None:
        seats = self.kinds[kind]
        if self.keeper.take(seats):
            self.seated.append(kind)
        elif not any(one.full() for one in seats):
            self.waiting.append((kind, self.runner.get_loop().create_task(self.keeper.wait(seats))))
        self.step()

    @rule(pick=st.integers(0, 99))
    def leave(self, pick: int) -> None:
        if self.seated:
            first = {kind: task for kind, task in reversed(self.waiting)}
            self.keeper.leave(self.kinds[self.seated.pop(pick % len(self.seated))])
            before = len(self.waiting)
            order = [task for _, task in self.waiting]
            self.step()
            served = [task for task in order if task.done()]
            assert before - len(self.waiting) == len(served)
            assert all(task in first.values() for task in served[:1])

    @rule(pick=st.integers(0, 99), seated=st.booleans())
    def give_up(self, pick: int, seated: bool) -> None:
        if not self.waiting:
            return
        _, task = self.waiting[pick % len(self.waiting)]
        if seated and self.seated:
            self.keeper.leave(self.kinds[self.seated.pop()])
        task.cancel()
        self.runner.run(settled())
        self.waiting = [one for one in self.waiting if one[1] is not task]
        assert task.cancelled()
        self.step()

    @rule(tenant=st.none() | st.integers(1, 4), adapter=st.none() | st.integers(1, 4))
    def change(self, tenant: int | None, adapter: int | None) -> None:
        self.tenant.limit, self.adapter.limit = tenant, adapter
        self.keeper.look([self.tenant, self.adapter])
        self.step()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "keeper"):
            return
        for seats in (self.tenant, self.adapter):
            assert seats.taken == sum(seats in self.kinds[kind] for kind in self.seated)
            assert len(seats.waiting) == sum(seats in self.kinds[kind] for kind, _ in self.waiting)
            assert 0 <= seats.queued <= len(seats.waiting)
        assert self.keeper.waiting == len(self.waiting)
        for kind, _ in self.waiting:
            assert not all(one.free() for one in self.kinds[kind]), "somebody waits who could sit"

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(end(*(task for _, task in self.waiting)))
            assert self.tenant.queued == self.adapter.queued == self.keeper.waiting == 0
            self.runner.close()


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

"""Requests at one time: seats, and who waits for them."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Sequence


class Seats:
    """Of one quota. ``limit`` None is no limit; a limit beneath what is taken takes nobody's seat away. ``queue``: how
    many may wait because these were not free."""

    __slots__ = ("limit", "queue", "queued", "taken", "waiting")

    def __init__(self, limit: int | None = None, queue: int = 0) -> None:
        self.limit = limit
        self.queue = queue
        self.taken = 0
        self.queued = 0
        self.waiting: dict[_Waiter, None] = {}
        """Whoever needs one of these and waits, for these or for others; in the order in which they came."""

    def free(self) -> bool:
        return self.limit is None or self.taken < self.limit

    def full(self) -> bool:
        """Whether whoever comes now is refused."""
        return not self.free() and self.queued >= self.queue


class _Waiter:
    """``counted`` are those of its seats that were not free when it came: it stands in their queues."""

    __slots__ = ("counted", "number", "seated", "seats")

    def __init__(self, number: int, seats: Sequence[Seats], seated: asyncio.Future[None]) -> None:
        self.number = number
        self.seats = seats
        self.counted = [one for one in seats if not one.free()]
        self.seated = seated


class SeatKeeper:
    """Gives seats, several at once or none. Belongs to one event loop.

    The law: nobody waits whose seats are all free, and of those that could be seated the first to come is. So who comes
    and finds free seats passes nobody who could have had them; who waits for one quota holds up nobody who needs only
    others.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.waiting = 0
        """Number of those that wait."""

    def take(self, seats: Sequence[Seats]) -> bool:
        """False takes nothing."""
        if not all(one.free() for one in seats):
            return False
        for one in seats:
            one.taken += 1
        return True

    async def wait(self, seats: Sequence[Seats]) -> None:
        """Takes them in its turn. Cancelled, it leaves nothing taken, and its place in the queues is free."""
        waiter = _Waiter(next(self._numbers), seats, asyncio.get_running_loop().create_future())
        for one in seats:
            one.waiting[waiter] = None
        for one in waiter.counted:
            one.queued += 1
        self.waiting += 1
        try:
            await waiter.seated
        except BaseException:  # a cancelled caller too leaves the queues
            if waiter.seated.done() and not waiter.seated.cancelled():
                self.leave(seats)  # it was seated in the same moment
            else:
                _strike(waiter)
            raise
        finally:
            self.waiting -= 1

    def leave(self, seats: Sequence[Seats]) -> None:
        """Gives them back, and to whoever waits for them."""
        for one in seats:
            one.taken -= 1
        self.look(seats)

    def look(self, seats: Sequence[Seats]) -> None:
        """Seats those that wait for any of these and can be seated. Due when a limit was raised as well."""
        if not any(one.waiting for one in seats):
            return
        seated: dict[_Waiter, None] = {}
        for waiter in heapq.merge(*(one.waiting for one in seats), key=lambda waiter: waiter.number):
            if not any(one.free() for one in seats):
                break
            if waiter not in seated and not waiter.seated.done() and self.take(waiter.seats):
                seated[waiter] = None
        for waiter in seated:
            _strike(waiter)
            waiter.seated.set_result(None)


def _strike(waiter: _Waiter) -> None:
    for one in waiter.seats:
        del one.waiting[waiter]
    for one in waiter.counted:
        one.queued -= 1


__all__ = ["SeatKeeper", "Seats"]

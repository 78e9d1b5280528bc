"""Expiry times: due in order, dead rows silent, and no heap that grows for ever."""

from __future__ import annotations

from lorry.ids import RequestId
from lorry.scheduler.timers import Expiry, Timers


def test_due_rows_come_in_order_and_dead_ones_not_at_all() -> None:
    live = {RequestId("a"): 0, RequestId("b"): 1, RequestId("c"): 2}
    timers = Timers(lambda request, arrival: live.get(request) == arrival)
    timers.add(3.0, 0, Expiry.DEADLINE, RequestId("a"), 3)
    timers.add(1.0, 1, Expiry.QUEUE, RequestId("b"), 3)
    timers.add(2.0, 2, Expiry.QUEUE, RequestId("c"), 3)
    del live[RequestId("b")]
    assert timers.next_at() == 2.0
    assert list(timers.expired(1.9)) == []
    live[RequestId("b")] = 9
    assert list(timers.expired(3.0)) == [(Expiry.QUEUE, "c"), (Expiry.DEADLINE, "a")]
    assert timers.next_at() is None


def test_one_that_the_caller_ends_is_not_due_again() -> None:
    live = {RequestId("a"): 0}
    timers = Timers(lambda request, arrival: live.get(request) == arrival)
    timers.add(1.0, 0, Expiry.DEADLINE, RequestId("a"), 1)
    timers.add(1.0, 0, Expiry.QUEUE, RequestId("a"), 1)
    seen = []
    for kind, request in timers.expired(1.0):
        seen.append(kind)
        del live[request]
    assert seen == [Expiry.DEADLINE]


def test_requests_that_end_early_do_not_pile_up() -> None:
    live: dict[RequestId, int] = {}
    timers = Timers(lambda request, arrival: live.get(request) == arrival)
    for arrival in range(10_000):
        request = RequestId(f"r{arrival}")
        live[request] = arrival
        timers.add(1e6 + arrival, arrival, Expiry.DEADLINE, request, len(live))
        del live[request]
    assert len(timers._heap) <= 1100

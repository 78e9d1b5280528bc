"""The one beat of all streams, on a loop whose clock is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from lorry.gateway.ticker import Ticker


class Clock:
    """Timers of a loop that are run by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def run(self) -> None:
        due, self.timers = self.timers, []
        for at, call in due:
            self.now = max(self.now, at)
            call()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(loop, "time", lambda: made.now)
    monkeypatch.setattr(loop, "call_at", lambda at, call: made.timers.append((at, call)))
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    yield made
    loop.close()


def test_all_that_asked_are_called_at_one_moment_within_the_time(clock: Clock) -> None:
    ticker, called = Ticker(0.02), list[str]()
    clock.now = 100.001
    ticker.soon(lambda: called.append("a"))
    clock.now = 100.015
    ticker.soon(lambda: called.append("b"))
    ((at, _),) = clock.timers
    assert at == pytest.approx(100.02)
    assert called == []
    clock.run()
    assert called == ["a", "b"]
    assert clock.timers == [], "nobody asks, so nothing wakes"


def test_who_asks_during_a_beat_is_called_at_the_next(clock: Clock) -> None:
    ticker, called = Ticker(0.02), list[int]()

    def again() -> None:
        called.append(len(called))
        if len(called) < 3:
            ticker.soon(again)

    ticker.soon(again)
    for count in (1, 2, 3):
        before = clock.now
        clock.run()
        assert len(called) == count
        assert before < clock.now <= before + 0.02 + 1e-9


async def test_no_time_is_the_next_turn_of_the_loop() -> None:
    ticker, called = Ticker(0.0), asyncio.Event()
    ticker.soon(called.set)
    assert not called.is_set()
    async with asyncio.timeout(10):
        await called.wait()

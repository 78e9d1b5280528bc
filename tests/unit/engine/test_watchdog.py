"""The watchdog on a clock that the test turns: what it names, once each, and what it leaves alone."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

import pytest

from lorry.config import WatchdogConfig
from lorry.engine.events import RequestAdmitted, RequestEnded
from lorry.engine.heartbeat import Heartbeat
from lorry.engine.watchdog import STUCK_STATUS, Watchdog
from lorry.ids import RequestId, TenantId
from lorry.scheduler.census import Standing
from lorry.scheduler.plan import StepPlan

CONFIG = WatchdogConfig(request_s=30.0, queued_s=120.0, step_s=10.0, step_limit_s=60.0)
PLAN = StepPlan(7, (), (), (), (), ())


class Loop:
    """A step loop as its watchdog sees it. ``answers`` False: it stands in a step and answers nothing."""

    def __init__(self) -> None:
        self.heartbeat = Heartbeat()
        self.now = 100.0
        self.standings: dict[str, tuple[bool, int]] = {}
        self.answers = True
        self.asked = 0
        self.ended: list[int] = []
        self.watchdog = Watchdog(CONFIG, self, lambda: self.now, self.ended.append)

    def census(self) -> Future[list[Standing]]:
        self.asked += 1
        answer: Future[list[Standing]] = Future()
        if self.answers:
            answer.set_result([Standing(RequestId(name), *rest) for name, rest in self.standings.items()])
        return answer

    def requests_in(self, plan: StepPlan) -> tuple[RequestId, ...]:
        assert plan is PLAN
        return tuple(map(RequestId, self.standings))

    def passes(self, seconds: float, turns: int = 1) -> None:
        """Time passes in looks of two seconds and a bit; each look is a question and its answer."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 2.5, until)
            for _ in range(turns):
                self.heartbeat.turn(self.now)
            if turns:
                self.heartbeat.rest()
            self.watchdog.look()
            self.watchdog.look()

    @property
    def counts(self) -> dict[str, int]:
        found: dict[str, int] = self.watchdog.state()["counts"]
        return found


def test_a_running_request_without_progress_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    loop.standings = {"stuck": (True, 5), "well": (True, 0), "late": (False, 0)}
    for _ in range(12):
        loop.standings["well"] = (True, loop.standings["well"][1] + 1)
        loop.passes(5.0)
    assert loop.counts == {"no_progress": 1}
    (finding,) = loop.watchdog.state()["last"]
    assert finding["requests"] == ("stuck",)
    assert 30 <= finding["seconds"] <= 36
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "stuck" in caplog.text
    assert "well" not in caplog.text


def test_progress_of_any_kind_starts_its_time_again() -> None:
    loop = Loop()
    loop.standings = {"slow": (True, 0)}
    for tokens in range(1, 6):
        loop.passes(28.0)
        loop.standings = {"slow": (True, tokens)}
    assert loop.counts == {}


def test_a_loop_that_does_not_turn_is_a_step_and_not_a_request_that_stands() -> None:
    loop = Loop()
    loop.standings = {"r": (True, 1)}
    loop.passes(2.5)
    loop.passes(100.0, turns=0)
    assert loop.counts == {}


def test_one_that_was_preempted_waits_and_does_not_run() -> None:
    loop = Loop()
    loop.standings = {"r": (True, 5)}
    loop.passes(20.0)
    loop.standings = {"r": (False, 5)}
    loop.passes(100.0)
    assert loop.counts == {}, "it waits for less than it may"
    loop.standings = {"r": (True, 5)}
    loop.passes(20.0)
    assert loop.counts == {}
    loop.standings = {"r": (False, 5)}
    loop.passes(130.0)
    assert loop.counts == {"queued": 1}


def test_one_that_queues_too_long_is_named(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    loop.standings = {"waits": (False, 0)}
    loop.passes(115.0)
    assert loop.counts == {}
    loop.passes(10.0)
    assert loop.counts == {"queued": 1}
    assert "waits" in caplog.text


def test_a_step_that_does_not_end_is_named_with_its_requests_and_stack_and_then_ends_the_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, stands, leave = Loop(), threading.Event(), threading.Event()

    def a_step_that_hangs() -> None:
        loop.heartbeat.turn(loop.now)
        loop.heartbeat.plan = PLAN
        stands.set()
        leave.wait()

    thread = threading.Thread(target=a_step_that_hangs)
    thread.start()
    try:
        assert stands.wait(10)
        loop.standings, loop.answers = {"one": (True, 3), "two": (True, 4)}, False
        loop.now += 9.0
        assert loop.watchdog.look()
        assert loop.counts == {}
        for _ in range(5):
            loop.now += 1.0
            assert loop.watchdog.look()
        assert loop.counts == {"step": 1}
        assert loop.watchdog.state()["last"][0]["requests"] == ("one", "two")
        assert "one, two" in caplog.text
        assert "a_step_that_hangs" in caplog.text, "the loop's stack"
        assert loop.ended == []
        loop.now = 100.0 + 60.0
        loop.watchdog.look()
        assert loop.ended == [STUCK_STATUS]
        assert loop.asked == 1, "no second question while the first has no answer"
    finally:
        leave.set()
        thread.join()


def test_the_next_long_step_is_named_too() -> None:
    loop = Loop()
    for count in (1, 2):
        loop.heartbeat.turn(loop.now)
        loop.now += 11.0
        loop.watchdog.look()
        assert loop.counts == {"step": count}
        loop.heartbeat.rest()
        loop.watchdog.look()


def test_state_is_bounded() -> None:
    loop = Loop()
    loop.standings = {f"r{i}": (True, 0) for i in range(1000)}
    loop.passes(40.0)
    assert loop.counts == {"no_progress": 1000}
    assert len(loop.watchdog.state()["last"]) <= 16


def test_it_sleeps_while_nothing_lives() -> None:
    """Its thread looks only from an admission to the last request's end."""
    loop = Loop()
    loop.watchdog.every_s = 0.001
    empty, looked = threading.Event(), threading.Semaphore(0)
    look = loop.watchdog.look

    def counted() -> bool:
        looked.release()
        busy = look()
        if not busy:
            empty.set()
        return busy

    loop.watchdog.look = counted  # type: ignore[method-assign]  # it stands in between
    loop.watchdog.start()
    try:
        admitted = RequestAdmitted(RequestId("r"), TenantId("t"), None, 1, 0.0)
        assert not looked.acquire(timeout=0.05)
        loop.watchdog(RequestEnded(RequestId("r"), "stop", 1, 0.0))
        assert not looked.acquire(timeout=0.05)
        loop.standings = {"r": (True, 1)}
        loop.watchdog(admitted)
        for _ in range(10):
            assert looked.acquire(timeout=10)
        assert not empty.is_set()
        loop.standings = {}
        assert empty.wait(10)
        while looked.acquire(timeout=0.05):
            pass
        asked = loop.asked
        assert not looked.acquire(timeout=0.05)
        assert loop.asked == asked
    finally:
        loop.watchdog.stop()

"""Limits of time and of queues: which of them ends whom, and where."""

from __future__ import annotations

from typing import Any

import pytest

from lorry.errors import DeadlineExceeded, Overloaded, QueueTimeout, TtftTimeout
from lorry.ids import RequestId
from tests.unit.residency.memory_host import key_of, version
from tests.unit.scheduler.rig import Rig

A = version("a")
LIMITS = ("queue_deadline", "ttft_deadline", "deadline")
ENDS: dict[str, type[Exception]] = {
    "queue_deadline": QueueTimeout,
    "ttft_deadline": TtftTimeout,
    "deadline": DeadlineExceeded,
}


def later(rig: Rig, limit: str, seconds: float = 0.5) -> dict[str, Any]:
    return {limit: rig.now + seconds}


def pass_time(rig: Rig) -> None:
    rig.now += 1.0
    rig.step()


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("instant", [True, False], ids=["waiting", "fetching"])
def test_each_ends_a_request_that_waits(limit: str, instant: bool) -> None:
    rig = Rig(sequences=1, instant=instant)
    rig.add("other", out=20)
    rig.step()
    rig.add("r", A, **later(rig, limit))
    rig.step()
    assert rig.error("r") is None
    pass_time(rig)
    error = rig.error("r")
    assert type(error) is ENDS[limit]
    if limit != "deadline":
        assert error is not None
        assert error.retry_after_s is not None
        assert "1.010 s" in str(error)
    assert key_of("r") not in rig.host.retained
    rig.run_out()
    assert rig.all_free()


@pytest.mark.parametrize(("limit", "ends"), [("queue_deadline", False), ("ttft_deadline", True), ("deadline", True)])
def test_in_its_prompt_the_queue_timeout_ends_nobody(limit: str, ends: bool) -> None:
    rig = Rig(budget=8, chunk_tokens=4)
    rig.add("r", A, prompt=20, out=4, **later(rig, limit))
    rig.step()
    pass_time(rig)
    assert isinstance(rig.error("r"), ENDS[limit]) == ends
    rig.run_out()
    assert (rig.error("r") is not None) == ends
    assert rig.all_free()


@pytest.mark.parametrize(("limit", "ends"), [("queue_deadline", False), ("ttft_deadline", False), ("deadline", True)])
def test_after_its_first_token_only_the_deadline_ends_one(limit: str, ends: bool) -> None:
    rig = Rig()
    rig.add("r", A, out=10, **later(rig, limit))
    rig.step()
    pass_time(rig)
    assert isinstance(rig.error("r"), ENDS[limit]) == ends
    rig.run_out()
    assert rig.all_free()


@pytest.mark.parametrize("in_prompt", [True, False], ids=["in_prompt", "in_output"])
@pytest.mark.parametrize("limit", LIMITS)
def test_of_one_that_is_preempted_what_it_has_had_counts(limit: str, in_prompt: bool) -> None:
    """It had its first step, so the queue timeout is over; the first token may be still to come."""
    rig = Rig(sequences=1, overcommit=True, budget=8, chunk_tokens=4)
    r = rig.add("r", A, prompt=8 if in_prompt else 4, out=10, **later(rig, limit))
    rig.step()
    rig.add("first", out=3, priority=1)
    assert rig.scheduler.preempt(r)
    rig.step()
    assert rig.started == ["r", "first"]
    pass_time(rig)
    ends = limit == "deadline" or (limit == "ttft_deadline" and in_prompt)
    assert isinstance(rig.error("r"), ENDS[limit]) == ends
    rig.run_out()
    assert (rig.error("r") is not None) == ends
    assert rig.all_free()


def test_a_limit_that_is_parked_with_its_request_ends_it_there() -> None:
    rig = Rig(overcommit=True)
    r = rig.add("r", A, prompt=4, out=10, deadline=rig.now + 0.5)
    plan = rig.scheduler.plan()
    assert plan is not None
    rig.scheduler.preempt(r)
    rig.now += 1.0
    assert rig.scheduler.plan() is None
    assert [type(error) for _, error in rig.scheduler.drain_events()] == [DeadlineExceeded]
    rig.scheduler.check_integrity()
    assert rig.scheduler.complete(plan, rig.device.run(plan)) == []
    assert rig.all_free()


def test_the_earliest_of_several_limits_ends_it_once() -> None:
    rig = Rig(sequences=1)
    rig.add("other", out=20)
    rig.step()
    rig.add("r", queue_deadline=rig.now + 0.3, ttft_deadline=rig.now + 0.2, deadline=rig.now + 0.4)
    pass_time(rig)
    assert isinstance(rig.error("r"), TtftTimeout)
    rig.run_out()
    assert [name for name, _ in rig.events] == ["r"]


def test_the_next_wakeup_is_the_earliest_limit_of_who_lives() -> None:
    rig = Rig()
    rig.add("a", ttft_deadline=rig.now + 3.0, deadline=rig.now + 9.0)
    rig.add("b", queue_deadline=rig.now + 2.0)
    assert rig.scheduler.next_wakeup() == pytest.approx(rig.now + 2.0)
    rig.scheduler.abort(RequestId("b"))
    assert rig.scheduler.next_wakeup() == pytest.approx(rig.now + 3.0)
    rig.scheduler.abort(RequestId("a"))
    assert rig.scheduler.next_wakeup() is None


def test_a_tenant_has_its_own_bound_in_the_queue() -> None:
    rig = Rig(sequences=1, queue=10, queue_per_tenant=2)
    rig.add("runs", tenant="x", out=30)
    rig.step()
    for i in range(2):
        rig.add(f"x{i}", tenant="x")
    with pytest.raises(
        Overloaded, match="2 requests of this tenant wait, the limit is max_queue_per_tenant = 2"
    ) as shed:
        rig.add("x2", A, tenant="x")
    assert shed.value.retry_after_s is not None
    assert not rig.host.retained, "nothing is held for what was refused"
    for i in range(2):
        rig.add(f"y{i}", tenant="y")
    rig.scheduler.abort(RequestId("x0"))
    rig.add("x2", tenant="x")
    rig.run_out()
    assert rig.error("x2") is None


def test_the_queue_of_all_is_bounded_too() -> None:
    rig = Rig(sequences=1, queue=3, queue_per_tenant=2)
    rig.add("runs", tenant="x", out=30)
    rig.step()
    for i, tenant in enumerate("xyz"):
        rig.add(f"r{i}", tenant=tenant)
    with pytest.raises(Overloaded, match="3 requests wait, the limit is max_queue = 3"):
        rig.add("r3", tenant="w")


def test_the_time_to_come_back_grows_with_the_queue() -> None:
    hints = []
    for waiting in (2, 20):
        rig = Rig(sequences=2, queue=waiting)
        for i in range(2):
            rig.add(f"runs{i}", out=30)
            rig.step()
        for i in range(waiting):
            rig.add(f"r{i}")
        with pytest.raises(Overloaded) as shed:
            rig.add("more")
        hints.append(shed.value.retry_after_s)
    few, many = hints
    assert few is not None
    assert many is not None
    assert 0.1 <= few < many <= 60.0


def test_requests_that_run_do_not_count_as_waiting() -> None:
    rig = Rig(sequences=4, queue=10, queue_per_tenant=1)
    for i in range(4):
        rig.add(f"r{i}", out=9)
        rig.step()
    rig.add("waits", out=9)
    with pytest.raises(Overloaded):
        rig.add("more", out=9)

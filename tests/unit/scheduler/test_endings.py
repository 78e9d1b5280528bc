"""Requests that end before their last token: cancelled, late, failed. Everything they had is free."""

from __future__ import annotations

import pytest

from lorry.errors import (
    AdapterLoadFailed,
    DeadlineExceeded,
    ObjectStoreUnavailable,
    QueueTimeout,
    RequestCancelled,
    SlotIntegrity,
)
from lorry.ids import RequestId, SlotId
from lorry.scheduler.scheduler import FETCH_POLL_S
from tests.unit.residency.memory_host import key_of, version
from tests.unit.scheduler.rig import Rig

A = version("a")


@pytest.mark.parametrize("stage", ["fetching", "waiting", "planned", "prefill", "decode"])
def test_abort_at_every_stage_frees_within_a_step(stage: str) -> None:
    rig = Rig(instant=stage != "fetching", budget=8, chunk_tokens=4, sequences=1)
    if stage == "waiting":
        rig.add("other", out=20)
        rig.step()
    r = rig.add("r", A, prompt=10, out=10)
    plan = None
    if stage == "planned":
        plan = rig.scheduler.plan()
    for _ in range({"prefill": 1, "decode": 4}.get(stage, 0)):
        rig.step()
    rig.scheduler.abort(r)
    rig.scheduler.abort(r)
    rig.scheduler.abort(RequestId("never was"))
    events = rig.scheduler.drain_events()
    assert [name for name, _ in events] == ["r"]
    assert isinstance(events[0][1], RequestCancelled)
    rig.scheduler.check_integrity()
    if plan is not None:
        assert rig.ledger.use().pages_pending > 0, "a step in flight still writes its pages"
        assert rig.scheduler.complete(plan, rig.device.run(plan)) == []
    if stage == "waiting":
        rig.scheduler.abort(RequestId("other"))
    assert rig.all_free()
    assert not rig.scheduler.has_work()


def test_pages_of_a_step_in_flight_are_not_given_away() -> None:
    rig = Rig(pages=16, context=64, sequences=2)
    r = rig.add("r", prompt=40, out=24)
    plan = rig.scheduler.plan()
    assert plan is not None
    rig.scheduler.abort(r)
    rig.add("next", prompt=40, out=24)
    assert rig.scheduler.plan() is None
    rig.scheduler.complete(plan, rig.device.run(plan))
    assert rig.scheduler.plan() is not None


def test_the_slot_of_a_step_in_flight_is_not_given_away() -> None:
    rig = Rig(slots=1, chunks=1)
    r = rig.add("r", A)
    plan = rig.scheduler.plan()
    assert plan is not None
    rig.scheduler.abort(r)
    rig.add("next", version("b"))
    assert rig.scheduler.plan() is None
    rig.scheduler.complete(plan, rig.device.run(plan))
    after = rig.scheduler.plan()
    assert after is not None
    assert after.unloads == (SlotId(0),)


def test_a_deadline_ends_waiting_and_running_requests() -> None:
    rig = Rig(sequences=1)
    rig.add("runs", A, out=50, deadline=rig.now + 0.055)
    rig.add("waits", A, out=50, deadline=rig.now + 0.035)
    for _ in range(5):
        rig.step()
    assert isinstance(rig.error("waits"), DeadlineExceeded)
    assert rig.error("runs") is None
    assert rig.scheduler.next_wakeup() == pytest.approx(100.055)
    rig.run_out()
    assert isinstance(rig.error("runs"), DeadlineExceeded)
    assert rig.all_free()


def test_a_deadline_in_the_past_is_refused_at_once() -> None:
    rig = Rig()
    with pytest.raises(DeadlineExceeded):
        rig.add("r", A, deadline=rig.now)
    assert not rig.scheduler.has_work()
    assert not rig.host.retained


def test_a_queue_timeout_ends_waiting_requests_only() -> None:
    rig = Rig(sequences=1)
    rig.add("runs", out=10, queue_deadline=rig.now + 0.025)
    rig.add("waits", out=10, queue_deadline=rig.now + 0.025)
    rig.run_out()
    error = rig.error("waits")
    assert isinstance(error, QueueTimeout)
    assert error.retry_after_s is not None
    assert rig.error("runs") is None
    assert rig.started == ["runs"]


def test_a_reused_request_id_does_not_inherit_a_timer() -> None:
    rig = Rig()
    rig.add("r", out=1, deadline=rig.now + 0.015)
    rig.step()
    rig.add("r", out=5, deadline=rig.now + 10.0)
    rig.run_out()
    assert rig.error("r") is None


def test_wakeup_is_soon_while_a_fetch_is_under_way() -> None:
    rig = Rig(instant=False)
    assert rig.scheduler.next_wakeup() is None
    rig.add("r", A)
    assert rig.scheduler.next_wakeup() == pytest.approx(rig.now + FETCH_POLL_S)


def test_a_failed_fetch_ends_those_that_waited_and_the_next_tries_again() -> None:
    rig = Rig(instant=False)
    rig.add("one", A, tenant="x")
    rig.add("two", A, tenant="y")
    rig.add("base")
    rig.host.fail(A.key, ObjectStoreUnavailable("the object store does not answer; retry later"))
    rig.step()
    assert isinstance(rig.error("one"), ObjectStoreUnavailable)
    assert isinstance(rig.error("two"), ObjectStoreUnavailable)
    assert rig.host.fetches == [key_of("a")], "one fetch for both"
    rig.add("three", A)
    rig.host.land(A.key)
    rig.run_out()
    assert rig.error("three") is None
    assert rig.host.fetches == [key_of("a"), key_of("a")]


def test_a_failure_that_nobody_stayed_for_is_not_held_against_the_next() -> None:
    rig = Rig(instant=False)
    r = rig.add("gone", A)
    rig.scheduler.abort(r)
    rig.host.fail(A.key, ObjectStoreUnavailable("the object store does not answer; retry later"))
    rig.add("next", A)
    rig.host.land(A.key)
    rig.run_out()
    assert rig.error("next") is None


def test_a_rank_over_the_limit_is_refused_by_name() -> None:
    rig = Rig(max_rank=16, instant=False)
    rig.add("r", version("a", rank=17))
    rig.host.land(A.key)
    rig.step()
    error = rig.error("r")
    assert isinstance(error, AdapterLoadFailed)
    assert "rank 17" in str(error)
    assert "max_rank = 16" in str(error)


def test_a_failed_load_ends_the_requests_of_that_slot_and_frees_it() -> None:
    rig = Rig(slots=1)
    rig.add("one", A, out=5)
    rig.add("two", A, out=5)
    rig.add("base", out=5)
    rig.step(fail_slots=frozenset({SlotId(0)}))
    for name in ("one", "two"):
        error = rig.error(name)
        assert isinstance(error, AdapterLoadFailed)
        assert "the test says so" in str(error)
    assert rig.scheduler.state()["slots"] == []
    rig.add("again", A, out=5)
    rig.run_out()
    assert rig.error("again") is None
    assert rig.error("base") is None


def test_a_failed_load_ends_those_that_joined_the_slot_meanwhile() -> None:
    rig = Rig()
    rig.add("one", A, out=5)
    first = rig.scheduler.plan()
    rig.add("two", A, out=5)
    rig.add("base", out=5)
    second = rig.scheduler.plan()
    assert first is not None
    assert second is not None
    failed = rig.device.run(first, fail_slots=frozenset({SlotId(0)}))
    rig.updates += rig.scheduler.complete(first, failed)
    rig.scheduler.check_integrity()
    rig.updates += rig.scheduler.complete(second, rig.device.run(second))
    assert isinstance(rig.error("one"), AdapterLoadFailed)
    assert isinstance(rig.error("two"), AdapterLoadFailed)
    rig.run_out()
    assert rig.error("base") is None
    assert rig.all_free()


def test_a_failed_load_says_nothing_of_the_same_adapters_next_fill() -> None:
    """A step that was under way has rows of the fill that failed; the adapter is loaded again before it is complete."""
    rig = Rig()
    rig.add("one", A, out=5)
    first = rig.scheduler.plan()
    second = rig.scheduler.plan()
    assert first is not None
    assert second is not None
    rig.updates += rig.scheduler.complete(first, rig.device.run(first, fail_slots=frozenset({SlotId(0)})))
    rig.add("next", A, out=5)
    third = rig.scheduler.plan()
    assert third is not None
    assert [load.adapter for load in third.loads] == [A.key]
    rig.updates += rig.scheduler.complete(second, rig.device.run(second))
    rig.updates += rig.scheduler.complete(third, rig.device.run(third))
    rig.run_out()
    assert isinstance(rig.error("one"), AdapterLoadFailed)
    assert rig.error("next") is None
    assert sum(len(update.tokens) for update in rig.of("next")) == 5
    assert rig.device.loads == 1, "what was loaded then was kept"
    assert rig.all_free()


def test_who_was_preempted_from_a_load_that_failed_goes_on_though_two_steps_had_its_rows() -> None:
    rig = Rig(overcommit=True, chunk_tokens=4)
    rig.add("r", A, prompt=12, out=5)
    first = rig.scheduler.plan()
    second = rig.scheduler.plan()
    assert first is not None
    assert second is not None
    assert rig.scheduler.preempt(RequestId("r"))
    rig.updates += rig.scheduler.complete(first, rig.device.run(first, fail_slots=frozenset({SlotId(0)})))
    rig.updates += rig.scheduler.complete(second, rig.device.run(second))
    rig.run_out()
    assert rig.error("r") is None
    assert sum(len(update.tokens) for update in rig.of("r")) == 5
    assert rig.all_free()


def test_a_slot_whose_load_failed_may_be_unloaded_by_a_plan_of_before() -> None:
    """The old fill turns out to be damaged while the adapter is loaded anew: whoever has it ends, and its slot is
    emptied, before it is known that the load failed."""
    rig = Rig(slots=1)
    rig.add("one", A, out=5)
    first = rig.scheduler.plan()
    assert first is not None
    rig.add("base", out=9)
    second = rig.scheduler.plan()
    assert second is not None
    rig.scheduler.slot_lost(A.key)
    third = rig.scheduler.plan()
    assert third is not None
    assert third.unloads == (SlotId(0),)
    rig.updates += rig.scheduler.complete(first, rig.device.run(first, fail_slots=frozenset({SlotId(0)})))
    for plan in (second, third):
        rig.updates += rig.scheduler.complete(plan, rig.device.run(plan))
    rig.events += rig.scheduler.drain_events()
    assert isinstance(rig.error("one"), SlotIntegrity)
    rig.run_out()
    assert rig.error("base") is None
    assert rig.all_free()

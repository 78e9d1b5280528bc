"""Over-commit: who gives way when pages run out, what is kept meanwhile, and that nobody can tell from the tokens."""

from __future__ import annotations

from typing import Any

import pytest

from lorry.errors import DeadlineExceeded, RequestCancelled
from lorry.ids import AdapterKey, RequestId, SequenceId, SlotId
from lorry.request import OutputParams, SamplingParams, StoppingParams
from lorry.scheduler import Ending, FirstStep, NewSequence
from tests.unit.residency.memory_host import key_of, version
from tests.unit.scheduler.rig import Rig

A, B = version("a"), version("b")


def token(new: NewSequence, adapter: AdapterKey | None, index: int) -> int:
    return 100 + hash((new.token_ids[: new.prompt_tokens], adapter, new.choice, index)) % 1000


def tight(pages: int = 6, **more: Any) -> Rig:
    """So many pages for the base's sequences, each of which may want all of them."""
    shape: dict[str, Any] = {"chunks": 1, "slots": 1, "context": 4 * pages, "overcommit": True, "token": token}
    return Rig(pages=pages, **shape | more)


def roomy(**more: Any) -> Rig:
    return Rig(token=token, sequences=8, **more)


def tokens(rig: Rig, name: str) -> list[int]:
    return [token for update in rig.of(name) for token in update.tokens]


def ending(rig: Rig, name: str) -> Ending:
    (found,) = [update.finish for update in rig.of(name) if update.finish is not None]
    return found


def first(rig: Rig, name: str) -> FirstStep:
    (found,) = [update.first for update in rig.of(name) if update.first is not None]
    return found


def running(rig: Rig) -> list[str]:
    return [str(r.request_id) for r in rig.scheduler._batch]


def preempted(rig: Rig, limit: int = 500) -> list[str]:
    """Run out; who was preempted, in order."""
    order: list[str] = []
    for _ in range(limit):
        if not rig.scheduler.has_work():
            return order
        before = running(rig)
        rig.step()
        gone = [name for name in reversed(before) if name not in running(rig)]
        order.extend(name for name in gone if rig.scheduler._live.get(RequestId(name)) is not None)
    raise AssertionError("work is left")


def test_the_lowest_priority_goes_first_then_the_most_recent_and_the_first_in_rank_never() -> None:
    rig = tight(pages=10, sequences=5)
    for name, priority in (("old", 0), ("high", 1), ("new", 0), ("low", -1)):
        rig.add(name, prompt=3, out=30, priority=priority)
    rig.step()
    assert running(rig) == ["high", "old", "new", "low"], "by rank"
    order = preempted(rig)
    assert order[:3] == ["low", "new", "old"]
    assert "high" not in order
    for name in ("old", "high", "new", "low"):
        assert ending(rig, name).output_tokens == 30
    assert rig.all_free()


def test_resumed_tokens_are_those_that_it_would_have_given() -> None:
    rig, alone = tight(pages=8, sequences=4), roomy()
    for each in (rig, alone):
        for i in range(5):
            each.add(f"r{i}", prompt=3 + i, out=20, ids=tuple(range(i, 2 * i + 3)))
    order = preempted(rig)
    alone.run_out()
    assert len(order) >= 3
    assert alone.scheduler.state()["preemptions"] == 0
    for i in range(5):
        assert tokens(rig, f"r{i}") == tokens(alone, f"r{i}")
        assert len(tokens(rig, f"r{i}")) == 20


def test_what_is_known_of_the_first_step_is_said_once_and_times_count_from_it() -> None:
    rig = tight()
    rig.add("r", prompt=5, out=6)
    rig.step()
    for _ in range(3):
        assert rig.scheduler.preempt(RequestId("r"))
        rig.step()
    rig.run_out()
    assert first(rig, "r") == FirstStep("base", 0.0, 0.0)
    end = ending(rig, "r")
    assert (end.prompt_tokens, end.output_tokens, end.cached_prompt_tokens) == (5, 6, 0)
    assert end.prefill_s == end.ttft_s == pytest.approx(0.01)
    assert end.decode_s == pytest.approx(0.05)


def test_the_hook_preempts_what_runs_alone() -> None:
    rig = tight(sequences=1)
    rig.add("r", out=4)
    rig.add("waits", out=4)
    assert not rig.scheduler.preempt(RequestId("r"))
    assert not rig.scheduler.preempt(RequestId("never was"))
    rig.step()
    assert not rig.scheduler.preempt(RequestId("waits"))
    assert rig.scheduler.preempt(RequestId("r"))
    assert not rig.scheduler.preempt(RequestId("r"))
    state = rig.scheduler.state()
    assert (state["running"], state["preempted"], state["preemptions"]) == (0, 1, 1)
    rig.run_out()
    assert rig.started[:2] == ["r", "r"], "it waits with the rank that it had"
    assert rig.all_free()


@pytest.mark.parametrize("salt", [b"", b"s"], ids=["not_cached", "cached"])
@pytest.mark.parametrize("ref", [None, A], ids=["base", "adapter"])
def test_preempted_in_every_step_that_it_advanced_it_gives_the_same_tokens(ref: Any, salt: bytes) -> None:
    rig, alone = tight(pages=16, sequences=3, chunk_tokens=5), roomy()
    for each in (rig, alone):
        for i in range(3):
            each.add(f"r{i}", ref, ids=(1, 2, 3, 4, 5, 6, 7, i), out=9, cache_salt=salt)
    alone.run_out()
    for _ in range(300):
        if not rig.scheduler.has_work():
            break
        rig.step()
        for request in rig.scheduler.advanced()[:1]:
            assert rig.scheduler.preempt(request)
        rig.scheduler.check_integrity()
    assert rig.scheduler.state()["preemptions"] >= 8
    for i in range(3):
        assert tokens(rig, f"r{i}") == tokens(alone, f"r{i}")
        assert len([update for update in rig.of(f"r{i}") if update.first]) == 1
    assert rig.all_free()


def test_advanced_are_those_that_put_out_a_token_since_they_joined() -> None:
    rig = tight(budget=8, chunk_tokens=4)
    rig.add("r", prompt=8, out=6)
    rig.step()
    assert rig.scheduler.advanced() == [], "half of its prompt"
    rig.step()
    assert rig.scheduler.advanced() == ["r"]
    rig.scheduler.preempt(RequestId("r"))
    assert rig.scheduler.advanced() == []
    rig.step()
    rig.step()
    assert rig.scheduler.advanced() == [], "9 ids are computed again, 4 at a time"
    rig.step()
    assert rig.scheduler.advanced() == ["r"]


def test_a_resume_computes_what_it_had_put_out_like_a_prompt_and_says_where_the_output_begins() -> None:
    rig = tight()
    rig.add("r", prompt=3, out=8)
    for _ in range(4):
        rig.step()
    rig.scheduler.preempt(RequestId("r"))
    plan = rig.step()
    assert plan is not None
    (new,), (row,) = plan.new, plan.sequences
    assert new.token_ids == (10, 11, 12, *tokens(rig, "r")[:4])
    assert new.prompt_tokens == 3
    assert (row.start, row.query_len, row.logit_rows) == (0, 7, 1)
    assert len(plan.finished) == 1


def test_a_preempted_request_keeps_its_version_on_the_host_while_its_slot_can_go() -> None:
    rig = tight(pages=12, sequences=2)
    rig.add("r", A, out=6)
    rig.step()
    rig.scheduler.preempt(RequestId("r"))
    assert [slot["pins"] for slot in rig.scheduler.state()["slots"]] == [0]
    assert [slot["holds"] for slot in rig.scheduler.state()["slots"]] == [1]
    rig.add("first", B, out=2, priority=1)
    plan = rig.step()
    assert plan is not None
    assert running(rig) == ["first"]
    assert (plan.unloads, [str(load.adapter) for load in plan.loads]) == ((SlotId(0),), ["b"])
    assert rig.host.retained == {key_of("a"), key_of("b")}
    rig.run_out()
    assert rig.host.fetches == [key_of("a"), key_of("b")], "its copy was never fetched again"
    assert rig.device.loads == 3
    assert len(tokens(rig, "r")) == 6
    assert rig.all_free()


def test_the_slot_of_one_that_is_preempted_in_a_step_under_way_does_not_go_before_it_is_done() -> None:
    rig = tight(pages=12, sequences=2)
    rig.add("r", A, out=6)
    plan = rig.scheduler.plan()
    assert plan is not None
    rig.scheduler.preempt(RequestId("r"))
    rig.scheduler.check_integrity()
    rig.add("first", B, out=2, priority=1)
    assert rig.scheduler.plan() is None
    rig.updates += rig.scheduler.complete(plan, rig.device.run(plan))
    rig.scheduler.check_integrity()
    assert len(tokens(rig, "r")) == 1, "what the step gave it counts"
    rig.run_out()
    assert len(tokens(rig, "r")) == 6


@pytest.mark.parametrize("where", ["parked", "waiting"])
@pytest.mark.parametrize("how", ["abort", "finish", "deadline"])
def test_the_end_of_one_that_is_preempted_frees_everything(how: str, where: str) -> None:
    rig = tight(sequences=1)
    r = rig.add("r", A, out=9, deadline=rig.now + 0.05)
    rig.step()
    rig.step()
    plan = rig.scheduler.plan() if where == "parked" else None
    rig.scheduler.preempt(r)
    rig.scheduler.check_integrity()
    if how == "abort":
        rig.scheduler.abort(r)
    elif how == "finish":
        end = rig.scheduler.finish(r)
        assert end is not None
        assert (end.reason, end.output_tokens) == ("stop", 2)
        assert rig.scheduler.finish(r) is None
    else:
        rig.now += 1.0
        assert rig.scheduler.plan() is None
    events = rig.scheduler.drain_events()
    rig.scheduler.check_integrity()
    assert not rig.scheduler.has_work()
    kinds = {"abort": [RequestCancelled], "finish": [], "deadline": [DeadlineExceeded]}
    assert [type(error) for _, error in events] == kinds[how]
    assert not rig.host.retained
    if plan is not None:
        assert rig.ledger.use().pages_pending > 0
        assert rig.scheduler.complete(plan, rig.device.run(plan)) == []
    assert rig.all_free()
    rig.add("next", A, out=2)
    rig.run_out()
    assert rig.error("next") is None


def test_a_parked_one_that_ends_by_the_step_it_was_in_is_told_so() -> None:
    rig = tight()
    r = rig.add("r", A, out=2)
    rig.step()
    plan = rig.scheduler.plan()
    assert plan is not None
    rig.scheduler.preempt(r)
    rig.updates += rig.scheduler.complete(plan, rig.device.run(plan))
    assert ending(rig, "r").reason == "length"
    assert not rig.scheduler.has_work()
    assert rig.all_free()


def test_two_that_cannot_both_grow_both_end() -> None:
    rig = tight(pages=4, sequences=2)
    rig.add("one", prompt=3, out=13)
    rig.add("two", prompt=3, out=13)
    order = preempted(rig)
    assert order
    assert set(order) == {"two"}
    assert [ending(rig, name).output_tokens for name in ("one", "two")] == [13, 13]
    assert rig.all_free()


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("overcommit", [True, False], ids=["overcommit", "worst_case"])
def test_the_smallest_budget_that_is_not_refused_serves_everybody(overcommit: bool, slots: int) -> None:
    """One longest sequence and one largest adapter, of which there are more."""
    rig = Rig(pages=6, chunks=2, slots=slots, max_rank=16, context=24, overcommit=overcommit, token=token)
    assert (rig.ledger.split.pages, rig.ledger.split.chunks) == (6, 2)
    for i in range(9):
        ref = None if i % 3 == 0 else version(f"v{i % 4}", rank=16 if i % 2 else 3)
        rig.add(f"r{i}", ref, prompt=9, out=15, tenant=f"t{i % 2}", cache_salt=b"s", priority=i % 2)
    rig.run_out()
    assert [ending(rig, f"r{i}").output_tokens for i in range(9)] == [15] * 9
    assert rig.all_free()


def test_what_a_preemption_gave_is_for_those_that_run() -> None:
    """In the plan that preempts nobody joins, or two would take turns at each other's pages."""
    rig = tight(pages=5, sequences=4, context=20)
    rig.add("one", prompt=7, out=13)
    rig.add("two", prompt=7, out=13)
    rig.step()
    assert running(rig) == ["one", "two"]
    rig.add("small", prompt=1, out=2, tenant="u")
    while not rig.scheduler.state()["preemptions"]:
        plan = rig.step()
    assert plan is not None
    assert plan.new == (), "although there is a page for it, and one to spare"
    plan = rig.step()
    assert plan is not None
    assert [len(new.token_ids) for new in plan.new] == [1]
    rig.run_out()


def test_a_page_for_each_that_runs_must_be_left_when_another_joins() -> None:
    rig = tight(pages=6, sequences=4)
    for name in ("one", "two", "three"):
        rig.add(name, prompt=3, out=12)
    rig.step()
    assert running(rig) == ["one", "two", "three"]
    assert rig.ledger.pages_promisable == 3
    rig = tight(pages=4, sequences=4)
    for name in ("one", "two", "three"):
        rig.add(name, prompt=3, out=12)
    rig.step()
    assert running(rig) == ["one", "two"]


def test_idle_adapters_go_before_anybody_is_preempted() -> None:
    """Two grow into the memory of an adapter that nobody uses."""
    rig = Rig(pages=3, chunks=2, slots=2, context=12, overcommit=True, token=token)
    rig.add("a", A, out=1)
    rig.add("b", B, out=1)
    rig.run_out()
    assert len(rig.scheduler.state()["slots"]) == 2
    rig.add("one", prompt=3, out=5)
    rig.add("two", prompt=3, out=5)
    plans = []
    while rig.scheduler.has_work():
        plans.append(rig.step())
    assert rig.scheduler.state()["preemptions"] == 0
    assert [slot["digest"] for slot in rig.scheduler.state()["slots"]] == ["b"]
    assert [plan.unloads for plan in plans if plan is not None and plan.unloads] == [(SlotId(0),)]
    assert [plan.idle_chunks for plan in plans if plan is not None and plan.idle_chunks] == [(0,)]
    assert rig.scheduler.state()["bytes"]["backed"] <= rig.scheduler.state()["bytes"]["budget"]


def test_cached_prefixes_go_before_anybody_is_preempted() -> None:
    rig = tight(pages=6, sequences=1)
    rig.add("old", prompt=12, out=4, cache_salt=b"s")
    rig.run_out()
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 3
    rig.add("r", prompt=3, out=20)
    rig.run_out()
    assert rig.scheduler.state()["preemptions"] == 0
    assert rig.scheduler.state()["prefix_cache"]["evictions"] == 3


def test_without_overcommit_nobody_is_preempted_and_fewer_run() -> None:
    rig = tight(pages=6, sequences=3, overcommit=False)
    for name in ("one", "two", "three"):
        rig.add(name, prompt=3, out=9)
    rig.step()
    assert running(rig) == ["one", "two"], "three pages each are promised"
    assert rig.ledger.use().pages_promised == 4
    rig.run_out()
    assert rig.scheduler.state()["preemptions"] == 0
    assert [ending(rig, name).output_tokens for name in ("one", "two", "three")] == [9, 9, 9]


def test_prompt_logprobs_are_given_once_whatever_is_preempted() -> None:
    rig = tight(pages=8, budget=8, chunk_tokens=3)
    r = rig.add("r", prompt=8, out=3, output=OutputParams(prompt_logprobs=0))
    for _ in range(2):
        rig.step()
        assert rig.scheduler.preempt(r)
    rig.run_out()
    scored = [score.token_id for update in rig.of("r") for score in update.prompt_logprobs]
    assert scored == list(range(11, 18))


def test_a_preempted_one_that_stops_early_stops_where_it_would_have() -> None:
    rig, alone = tight(), roomy()
    stop = token(NewSequence(SequenceId(0), (10, 11, 12), 3, SamplingParams()), None, 4)
    for each in (rig, alone):
        each.add("r", prompt=3, stopping=StoppingParams(max_tokens=12, stop_token_ids=(stop,)))
    for _ in range(3):
        rig.step()
        rig.scheduler.preempt(RequestId("r"))
    rig.run_out()
    alone.run_out()
    assert tokens(rig, "r") == tokens(alone, "r")
    assert (ending(rig, "r").reason, ending(rig, "r").matched_stop_id) == ("stop", stop)
    assert ending(rig, "r").output_tokens == 5

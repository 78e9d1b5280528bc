"""One request's life: tokens, stops, limits, updates."""

from __future__ import annotations

import json

import pytest

from lorry.config import SchedulerConfig
from lorry.errors import AlreadyExists, InvalidRequest, NonFiniteLogits, Overloaded, SlotIntegrity
from lorry.ids import SequenceId
from lorry.request import StoppingParams
from lorry.scheduler import Scheduler, StepResult
from tests.unit.residency.memory_host import key_of, version
from tests.unit.scheduler.rig import EOS, Rig


def script(*tokens: int) -> Rig:
    """Every sequence puts out ``tokens``, then 9s."""
    return Rig(token=lambda _new, _adapter, index: tokens[index] if index < len(tokens) else 9)


def printed(rig: Rig, name: str) -> list[int]:
    return [t for u in rig.of(name) for t in u.tokens]


def test_a_request_runs_to_its_length_and_leaves_nothing_behind() -> None:
    rig = Rig()
    rig.add("r", version("a"), prompt=6, out=3)
    plan = rig.step()
    assert plan is not None
    assert [(s.start, s.query_len, s.logit_rows) for s in plan.sequences] == [(0, 6, 1)]
    assert [(x.adapter, x.generation) for x in plan.loads] == [(key_of("a"), 1)]
    rig.run_out()
    updates = rig.of("r")
    assert [u.tokens for u in updates] == [(7,), (7,), (7,)]
    assert {u.adapter for u in updates} == {key_of("a")}
    assert [u.first is not None for u in updates] == [True, False, False]
    end = updates[-1].finish
    assert end is not None
    assert (end.reason, end.matched_stop_id, end.prompt_tokens, end.output_tokens) == ("length", None, 6, 3)
    assert rig.all_free()


def test_timings_and_first_step() -> None:
    rig = Rig(instant=False)
    rig.add("r", version("a"), out=3)
    assert rig.step(seconds=0.5) is None
    rig.host.land(version("a").key)
    for _ in range(3):
        rig.step(seconds=0.25)
    first, last = rig.of("r")[0].first, rig.of("r")[-1].finish
    assert first is not None
    assert last is not None
    assert (first.tier, first.queue_s, first.adapter_load_s) == ("object_store", 0.5, 0.5)
    assert (last.prefill_s, last.ttft_s, last.decode_s) == (0.25, 0.75, 0.5)


def test_the_tier_is_the_one_at_arrival() -> None:
    rig = Rig()
    for name, ref in (("cold", version("a")), ("warm", version("a")), ("base", None)):
        rig.add(name, ref)
    rig.run_out()
    rig.add("device", version("a"))
    rig.run_out()
    tiers = {name: first.tier for name in ("cold", "warm", "base", "device") if (first := rig.of(name)[0].first)}
    assert tiers == {"cold": "object_store", "warm": "host", "base": "base", "device": "device"}


def test_prefill_is_chunked_and_decodes_come_first() -> None:
    rig = Rig(budget=8, chunk_tokens=6, sequences=3)
    rig.add("a", prompt=4, out=10)
    rig.step()
    rig.add("b", prompt=13, out=2)
    shapes = []
    for _ in range(3):
        plan = rig.step()
        assert plan is not None
        shapes.append([(s.sequence, s.start, s.query_len, s.logit_rows) for s in plan.sequences])
        assert plan.tokens <= 8
    assert shapes == [
        [(0, 4, 1, 1), (1, 0, 6, 0)],
        [(0, 5, 1, 1), (1, 6, 6, 0)],
        [(0, 6, 1, 1), (1, 12, 1, 1)],
    ]


def test_eos_ends_and_is_counted_but_not_printed() -> None:
    rig = script(5, EOS)
    rig.add("r", out=10)
    rig.run_out()
    end = rig.of("r")[-1].finish
    assert printed(rig, "r") == [5]
    assert end is not None
    assert (end.reason, end.matched_stop_id, end.output_tokens) == ("stop", EOS, 2)


@pytest.mark.parametrize(
    ("stopping", "reason", "shown", "stop_id"),
    [
        (StoppingParams(max_tokens=4, ignore_eos=True), "length", [5, EOS, 6, 8], None),
        (StoppingParams(max_tokens=4, ignore_eos=True, stop_token_ids=(6,)), "stop", [5, EOS], 6),
        (StoppingParams(max_tokens=4, min_tokens=2, stop_token_ids=(6,)), "stop", [5, EOS], 6),
        (StoppingParams(max_tokens=4, min_tokens=1), "stop", [5], EOS),
        (StoppingParams(max_tokens=3, min_tokens=3), "length", [5, EOS, 6], None),
        (StoppingParams(max_tokens=1, stop_token_ids=(5,)), "stop", [], 5),
        (StoppingParams(max_tokens=1), "length", [5], None),
    ],
)
def test_stop_ids_min_tokens_and_ignore_eos(
    stopping: StoppingParams, reason: str, shown: list[int], stop_id: int | None
) -> None:
    rig = script(5, EOS, 6, 8)
    rig.add("r", stopping=stopping)
    rig.run_out()
    end = rig.of("r")[-1].finish
    assert end is not None
    assert (printed(rig, "r"), end.reason, end.matched_stop_id) == (shown, reason, stop_id)


def test_a_plan_runs_ahead_of_results_and_never_past_the_length() -> None:
    rig = script(5, EOS)
    rig.add("eos", out=10)
    rig.add("short", stopping=StoppingParams(max_tokens=2, ignore_eos=True))
    first = rig.scheduler.plan()
    second = rig.scheduler.plan()
    third = rig.scheduler.plan()
    assert first is not None
    assert second is not None
    assert third is not None
    assert [s.sequence for s in third.sequences] == [0], "the short one's last token is in the second plan"
    for plan in (first, second):
        rig.updates += rig.scheduler.complete(plan, rig.device.run(plan))
    assert not rig.scheduler.has_work()
    assert rig.ledger.use().pages_pending > 0, "the third step still writes them"
    assert rig.scheduler.complete(third, rig.device.run(third)) == []
    assert rig.all_free()


def test_distinct_adapters_are_counted_over_the_steps() -> None:
    rig = Rig()
    rig.add("long", version("a"), out=6)
    rig.step()
    rig.add("b", version("b"), out=1)
    rig.add("base", out=1)
    rig.run_out()
    end = rig.of("long")[-1].finish
    assert end is not None
    assert (end.max_distinct_adapters, end.min_distinct_adapters) == (3, 1)


def test_finish_ends_a_running_request_once() -> None:
    rig = Rig()
    rig.add("r", out=10)
    rig.step()
    rig.step()
    end = rig.scheduler.finish(rig.of("r")[0].request_id)
    assert end is not None
    assert (end.reason, end.output_tokens) == ("stop", 2)
    assert rig.scheduler.finish(rig.of("r")[0].request_id) is None
    assert not rig.scheduler.has_work()
    assert rig.all_free()


def test_finished_sequences_are_told_with_the_next_plan() -> None:
    rig = Rig()
    rig.add("a", out=1)
    rig.step()
    rig.add("b", out=1)
    plan = rig.step()
    assert plan is not None
    assert plan.finished == (0,)


@pytest.mark.parametrize(
    ("prompt", "out", "words"),
    [(0, 4, "prompt"), (4, 0, "max_tokens"), (60, 5, "context_tokens = 64")],
)
def test_what_can_never_run_is_refused_by_name(prompt: int, out: int, words: str) -> None:
    rig = Rig()
    with pytest.raises(InvalidRequest, match=words) as refused:
        rig.add("r", version("a"), prompt=prompt, out=out)
    assert refused.value.violations
    assert not rig.scheduler.has_work()
    assert not rig.host.retained


def test_more_pages_than_the_arena_is_refused_by_name() -> None:
    rig = Rig(context=64, pages=16)
    wide = SchedulerConfig(4, 64, 64, 10, 10, 1000)
    rig.scheduler = Scheduler(wide, rig.ledger, rig.tables, rig.residency, lambda: rig.now)
    with pytest.raises(InvalidRequest, match="this engine has 19"):
        rig.add("r", prompt=100, out=5)


def test_a_live_request_id_is_refused_and_free_again_afterwards() -> None:
    rig = Rig()
    rig.add("r", out=1)
    with pytest.raises(AlreadyExists, match="'r'"):
        rig.add("r", out=1)
    rig.run_out()
    rig.add("r", out=1)
    rig.run_out()
    assert len(rig.of("r")) == 2


def test_a_full_queue_is_overload_with_a_time_to_come_back() -> None:
    rig = Rig(queue=5, sequences=1)
    for i in range(5):
        rig.add(f"r{i}", version("a"))
    with pytest.raises(Overloaded, match="max_queue = 5") as refused:
        rig.add("r5", version("b"))
    assert refused.value.retry_after_s is not None
    assert refused.value.retry_after_s > 0
    assert rig.host.retained == {key_of("a")}
    rig.step()
    rig.add("r5", version("b"))


def test_a_fault_ends_its_sequence_and_no_other() -> None:
    rig = Rig()
    rig.add("bad", version("a"))
    rig.add("good", version("a"))
    rig.step()
    rig.step(faults={SequenceId(0): "NON_FINITE_LOGITS"})
    rig.run_out()
    assert isinstance(rig.error("bad"), NonFiniteLogits)
    assert rig.error("good") is None
    assert rig.of("good")[-1].finish is not None
    assert rig.device.loads == 1


def test_an_adapter_other_than_the_planned_one_yields_no_token_and_costs_the_slot() -> None:
    rig = Rig()
    rig.add("r", version("a"), out=10)
    rig.add("s", version("b"), out=10)
    rig.step()
    (slot_a, a), (slot_b, b) = rig.device.slots.items()
    rig.device.slots = {slot_a: (a[0], b[1], a[2]), slot_b: (b[0], a[1], b[2])}
    tokens = len(rig.updates)
    rig.step()
    assert isinstance(rig.error("r"), SlotIntegrity)
    assert isinstance(rig.error("s"), SlotIntegrity)
    assert not any(u.tokens for u in rig.updates[tokens:])
    rig.add("again", version("a"), out=2)
    plan = rig.step()
    assert plan is not None
    assert set(plan.unloads) == {slot_a, slot_b}
    assert [str(load.adapter) for load in plan.loads] == ["a"]
    rig.run_out()
    assert rig.of("again")[-1].finish is not None


def test_a_result_that_passes_off_another_adapter_is_caught_here_too() -> None:
    rig = Rig()
    rig.add("r", version("a"))
    plan = rig.scheduler.plan()
    assert plan is not None
    result = rig.device.run(plan)
    forged = tuple(type(r)(r.sequence, r.tokens, version("b").key) for r in result.results)
    (update,) = rig.scheduler.complete(plan, StepResult(plan.step, forged, 0.0))
    assert isinstance(update.error, SlotIntegrity)
    assert not update.tokens


@pytest.mark.parametrize("config", [SchedulerConfig(max_sequences=9, token_budget=8), SchedulerConfig(max_queue=0)])
def test_a_configuration_that_could_stand_still_is_refused(config: SchedulerConfig) -> None:
    rig = Rig()
    with pytest.raises(InvalidRequest, match="scheduler"):
        Scheduler(config, rig.ledger, rig.tables, rig.residency)


def test_state_is_json() -> None:
    rig = Rig(sequences=1, extras=50)
    for i in range(40):
        rig.add(f"r{i}", version("a", extra_bytes=30), tenant=f"t{i}")
    rig.step()
    state = json.loads(json.dumps(rig.scheduler.state()))
    assert len(state["waiting_by_tenant"]) == 32
    assert state["waiting_other_tenants"] == 7
    slot = {
        "slot": 0,
        "generation": 1,
        "digest": "a",
        "scope": "own",
        "chunks": 1,
        "extra_bytes": 30,
        "pins": 1,
        "holds": 40,
    }
    assert state["slots"] == [slot]
    assert state["extras"] == {"cap": 50, "free": 20, "pending": 0, "used": 30}
    assert (state["bytes"]["adapters"], state["bytes"]["adapters_cap"]) == (1030, 4550)
    assert state["pages"]["used"] + state["pages"]["promised"] + state["pages"]["free"] >= state["pages"]["total"]

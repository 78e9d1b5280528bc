"""Who runs next: passing over, ageing, tenants in turn, slots and pages."""

from __future__ import annotations

import pytest

from lorry.errors import AdapterCold
from lorry.ids import RequestId
from lorry.scheduler import AgeingBound
from tests.unit.residency.memory_host import key_of, version
from tests.unit.scheduler.rig import Rig

NEVER = AgeingBound(plans=10**9, seconds=10.0**9)


def test_a_request_whose_adapter_is_on_its_way_blocks_nobody() -> None:
    rig = Rig(instant=False)
    rig.add("cold", version("a"))
    rig.add("base")
    rig.step()
    assert rig.started == ["base"]
    rig.host.land(version("a").key)
    rig.step()
    assert rig.started == ["base", "cold"]


def test_one_slot_a_b_a_a_a_serves_b_within_the_bound() -> None:
    """Each A keeps the only slot pinned before the one before it ends, so without ageing B never runs."""
    rig = Rig(slots=1, sequences=4, ageing=AgeingBound(plans=5, seconds=1e9))
    rig.add("A0", version("a"), out=4)
    rig.step()
    rig.add("B", version("b"), out=2)
    for i in range(1, 40):
        rig.add(f"A{i}", version("a"), out=4)
        rig.step()
        if "B" in rig.started:
            break
    # 5 plans until it starves, then at most the 4 steps of an A that joined just before, and one to join.
    assert "B" in rig.started
    assert i <= 5 + 4 + 1
    rig.run_out()
    assert len(rig.started) == i + 2


def test_without_ageing_b_would_starve() -> None:
    """The test above shows nothing unless this holds."""
    rig = Rig(slots=1, sequences=4, ageing=NEVER)
    rig.add("A0", version("a"), out=4)
    rig.step()
    rig.add("B", version("b"), out=2)
    for i in range(1, 40):
        rig.add(f"A{i}", version("a"), out=4)
        rig.step()
    assert "B" not in rig.started


def test_the_bound_in_seconds_holds_as_well() -> None:
    rig = Rig(slots=1, sequences=4, ageing=AgeingBound(plans=10**9, seconds=0.5))
    rig.add("A0", version("a"), out=4)
    rig.step()
    rig.add("B", version("b"), out=2)
    for i in range(1, 30):
        rig.add(f"A{i}", version("a"), out=4)
        rig.step(seconds=0.1)
    assert "B" in rig.started
    assert rig.started.index(RequestId("B")) <= 11


def test_while_one_starves_for_a_slot_base_requests_and_other_slots_go_on() -> None:
    rig = Rig(slots=2, sequences=8, ageing=AgeingBound(plans=2, seconds=1e9))
    rig.add("a", version("a"), out=30)
    rig.add("c0", version("c"), out=12)
    rig.add("c1", version("c"), out=12)
    rig.step()
    rig.add("B", version("b"), out=2)
    for _ in range(3):
        rig.step()
    rig.add("base")
    rig.add("c2", version("c"))
    rig.add("a2", version("a"))
    rig.step()
    assert rig.started == ["a", "c0", "c1", "base", "c2"], "slot of a, the quieter, drains; a2 may not join it"
    rig.run_out()
    assert rig.started[5:] == ["B", "a2"]


def test_a_large_request_that_lacks_pages_is_passed_over_and_then_starves_nobody_but_later_ones() -> None:
    rig = Rig(pages=16, context=64, sequences=8, ageing=AgeingBound(plans=4, seconds=1e9))
    rig.add("first", prompt=4, out=20)
    rig.step()
    rig.add("large", prompt=40, out=20)
    rig.add("small0", prompt=4, out=4)
    rig.step()
    assert rig.started == ["first", "small0"]
    for i in range(1, 60):
        rig.add(f"small{i}", prompt=4, out=4)
        rig.step()
        if "large" in rig.started:
            break
    assert "large" in rig.started
    assert i <= 4 + 20 + 1, "the bound, then the longest that ran"
    rig.run_out()


def test_a_smaller_request_of_the_same_tenant_and_adapter_may_pass() -> None:
    rig = Rig(pages=16, context=64, ageing=NEVER)
    rig.add("first", version("a"), prompt=4, out=20)
    rig.step()
    rig.add("large", version("a"), prompt=40, out=20)
    rig.add("small", version("a"), prompt=4, out=4)
    rig.step()
    assert rig.started == ["first", "small"]


def test_tenants_take_turns_whatever_their_queues() -> None:
    rig = Rig(sequences=1)
    for i in range(6):
        rig.add(f"x{i}", tenant="x", out=1)
    for i in range(2):
        rig.add(f"y{i}", tenant="y", out=1)
    rig.add("z0", tenant="z", out=1)
    rig.run_out()
    assert rig.started == ["x0", "y0", "z0", "x1", "y1", "x2", "x3", "x4", "x5"]


def test_tenants_take_turns_under_page_pressure_too() -> None:
    """All of x starve long before y comes; y's one request still has the next turn but one."""
    rig = Rig(pages=16, context=64, sequences=8, ageing=AgeingBound(plans=1, seconds=1e9))
    for i in range(12):
        rig.add(f"x{i}", version(f"a{i % 3}"), tenant="x", prompt=20, out=12)
    for _ in range(6):
        rig.step()
    rig.add("y0", tenant="y", prompt=20, out=12)
    started = len(rig.started)
    rig.run_out()
    assert rig.started.index(RequestId("y0")) - started <= 2


def test_the_least_recently_used_slot_that_nobody_holds_goes_first() -> None:
    rig = Rig(slots=3, chunks=3)
    for name in ("a", "b", "c", "a"):
        rig.add(f"{name}{rig.device.steps}", version(name), out=1)
        rig.run_out()
    rig.add("holds-b", version("b"), out=1)
    rig.add("d", version("d"), out=1)
    rig.step()
    resident = {s["digest"] for s in rig.scheduler.state()["slots"]}
    assert resident == {"a", "b", "d"}, "c was used last before a"


def test_a_held_slot_goes_only_when_nothing_else_moves() -> None:
    """Pages keep A's second request out, so A's slot is held and not pinned; the base runs, so B waits."""
    rig = Rig(slots=1, pages=16, context=64, sequences=4, ageing=NEVER)
    rig.add("A0", version("a"), out=1)
    rig.run_out()
    rig.add("base", prompt=4, out=20)
    rig.step()
    rig.add("A1", version("a"), prompt=40, out=20)
    rig.add("B", version("b"), out=2)
    rig.step()
    assert rig.started == ["A0", "base"]
    rig.run_out()
    assert rig.started == ["A0", "base", "A1", "B"]


def test_a_held_slot_does_go_when_nothing_runs() -> None:
    """B's tenant has the turn, nothing runs, and the only slot is held by the tenant after it."""
    rig = Rig(slots=1, sequences=1)
    rig.add("A0", version("a"), tenant="x", out=2)
    rig.step()
    rig.add("B", version("b"), tenant="y", out=1)
    rig.add("A1", version("a"), tenant="x", out=1)
    rig.run_out()
    assert rig.started == ["A0", "B", "A1"]
    assert rig.device.loads == 3
    assert rig.host.fetches == [key_of("a"), key_of("b")], "the hold kept A's copy on the host"


def test_several_ranks_share_the_chunks_and_a_large_adapter_evicts_as_many_as_it_needs() -> None:
    rig = Rig(slots=4, chunks=4, max_rank=32)
    for name in ("a", "b", "c", "d"):
        rig.add(name, version(name, rank=8), out=1)
    rig.run_out()
    rig.add("wide", version("w", rank=20), out=1)
    plan = rig.step()
    assert plan is not None
    assert len(plan.loads[0].chunks) == 3
    assert len(plan.unloads) == 3
    rig.add("wider", version("v", rank=32), out=1)
    plan = rig.step()
    assert plan is not None
    assert len(plan.loads[0].chunks) == 4
    assert [s["digest"] for s in rig.scheduler.state()["slots"]] == ["v"]


def test_a_narrow_adapter_passes_a_wide_one_that_finds_no_room() -> None:
    rig = Rig(slots=3, chunks=3, max_rank=16, ageing=NEVER)
    rig.add("a", version("a"), out=20)
    rig.add("b", version("b"), out=20)
    rig.step()
    rig.add("wide", version("w", rank=16), tenant="x")
    rig.add("narrow", version("n", rank=8), tenant="x")
    rig.step()
    assert rig.started == ["a", "b", "narrow"]
    rig.run_out()
    assert rig.started == ["a", "b", "narrow", "wide"]


def test_one_that_starved_and_was_cancelled_holds_nothing_back() -> None:
    rig = Rig(slots=1, ageing=AgeingBound(plans=2, seconds=1e9))
    rig.add("a", version("a"), out=20)
    rig.step()
    rig.add("B", version("b"))
    for _ in range(4):
        rig.step()
    rig.add("a2", version("a"))
    rig.step()
    assert rig.started == ["a"]
    rig.scheduler.abort(RequestId("B"))
    rig.step()
    assert rig.started == ["a", "a2"]
    rig.run_out()


def test_reject_cold_refuses_what_is_neither_on_the_device_nor_on_the_host() -> None:
    rig = Rig(slots=1)
    with pytest.raises(AdapterCold, match="object_store"):
        rig.add("r", version("a"), reject_cold=True)
    assert not rig.host.fetches
    rig.add("warm", version("a"), out=1)
    rig.run_out()
    rig.host.drop(version("a").key)
    rig.add("device", version("a"), out=1, reject_cold=True)
    rig.add("base", out=1, reject_cold=True)
    rig.run_out()


def test_cold_and_held_by_nobody_is_fetched_again_after_eviction() -> None:
    """A is on the device alone when its slot is wanted; its waiting request is asked after at the host again."""
    rig = Rig(slots=1, sequences=1)
    rig.add("A0", version("a"), tenant="x", out=2)
    rig.run_out()
    rig.host.drop(version("a").key)
    rig.add("B", version("b"), tenant="y", out=1)
    rig.add("A1", version("a"), tenant="z", out=1)
    rig.run_out()
    assert rig.started == ["A0", "B", "A1"]
    assert rig.host.fetches == [key_of("a"), key_of("b"), key_of("a")]

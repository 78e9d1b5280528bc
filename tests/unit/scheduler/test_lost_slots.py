"""A slot whose bytes changed: nothing that it computed is found, and no answer that it began ends well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lorry.errors import SlotIntegrity
from lorry.ids import SlotId
from lorry.request import OutputParams
from lorry.scheduler import StepPlan
from tests.unit.residency.memory_host import version
from tests.unit.scheduler.rig import Rig
from tests.unit.scheduler.test_choices import add, ending, rig_of

A, B = version("a"), version("b")
IDS = tuple(range(10, 26))


def cached_pages(rig: Rig) -> int:
    pages = rig.scheduler.state()["prefix_cache"]["pages"]
    assert isinstance(pages, int)
    return pages


def test_one_that_was_preempted_from_it_ends_by_it() -> None:
    rig = Rig(overcommit=True)
    begun = rig.add("begun", A, ids=IDS, out=6, cache_salt=b"salt")
    rig.step()
    waiting = rig.add("waiting", A, ids=IDS, out=6, cache_salt=b"salt")
    assert rig.scheduler.preempt(begun)
    rig.scheduler.slot_lost(A.key)
    rig.run_out()
    assert isinstance(rig.error(begun), SlotIntegrity)
    assert rig.error(waiting) is None, "it has nothing from the damaged bytes"
    assert rig.all_free()


def test_one_that_was_preempted_before_its_first_token_begins_anew() -> None:
    rig = Rig(overcommit=True, budget=8, chunk_tokens=4)
    request = rig.add("r", A, ids=IDS, out=6, cache_salt=b"salt")
    rig.step()
    assert rig.scheduler.preempt(request)
    rig.scheduler.slot_lost(A.key)
    assert cached_pages(rig) == 0
    rig.run_out()
    assert rig.error(request) is None
    assert ending(rig, request).output_tokens == 6


@pytest.mark.parametrize("ahead", [False, True])
def test_damage_that_shows_when_the_slot_is_unloaded_ends_what_came_from_it(ahead: bool) -> None:
    """One slot: A is preempted, B's load unloads A's bytes, and the device finds that they had changed."""
    rig = Rig(overcommit=True, slots=1)
    begun = rig.add("begun", A, tenant="x", ids=IDS, out=6, cache_salt=b"salt")
    rig.step()
    rig.add("next", B, tenant="y", ids=IDS, out=6)
    assert rig.scheduler.preempt(begun)
    plan = rig.scheduler.plan()
    assert plan is not None
    assert plan.unloads == (SlotId(0),)
    later = rig.scheduler.plan() if ahead else None
    result = replace(rig.device.run(plan), lost=(A.key,))
    rig.updates += rig.scheduler.complete(plan, result)
    if later is not None:
        rig.updates += rig.scheduler.complete(later, rig.device.run(later))
    rig.events += rig.scheduler.drain_events()
    assert isinstance(rig.error(begun), SlotIntegrity)
    rig.run_out()
    assert rig.error("next") is None
    found = rig.add("after", A, ids=IDS, out=2, cache_salt=b"salt")
    rig.run_out()
    last = rig.of(found)[-1].finish
    assert last is not None
    assert last.cached_prompt_tokens == 0


def test_a_damaged_copy_is_no_fault_of_another_adapters_copy_of_the_same_bytes() -> None:
    theirs = version("a", scope="theirs")
    rig = Rig(overcommit=True)
    ours, other = rig.add("ours", A, ids=IDS, out=6, cache_salt=b"s"), rig.add("theirs", theirs, ids=IDS, out=6)
    rig.step()
    rig.scheduler.slot_lost(A.key)
    rig.run_out()
    assert isinstance(rig.error(ours), SlotIntegrity)
    assert rig.error(other) is None


def test_a_row_that_ran_on_another_adapters_copy_of_the_same_bytes_is_not_answered() -> None:
    """Also on the short path that nearly all decodes take."""
    for steps in (0, 2):
        rig = Rig()
        rig.add("ours", A, ids=IDS, out=6)
        for _ in range(steps):
            rig.step()
        plan = rig.scheduler.plan()
        assert plan is not None
        result = rig.device.run(plan)
        theirs = tuple(row._replace(adapter=version("a", scope="theirs").key) for row in result.results)
        rig.updates += rig.scheduler.complete(plan, replace(result, results=theirs))
        assert isinstance(rig.error("ours"), SlotIntegrity)
        assert sum(len(update.tokens) for update in rig.of("ours")) == steps


def fault_in_first_row(rig: Rig, plan: StepPlan) -> None:
    faults = {plan.sequences[0].sequence: "SLOT_INTEGRITY"}
    rig.updates += rig.scheduler.complete(plan, rig.device.run(plan, faults=faults))
    rig.scheduler.check_integrity()


def test_nothing_that_such_a_step_computed_is_found_whatever_the_order_of_its_rows() -> None:
    rig = Rig()
    rig.add("one", A, ids=IDS[:8], out=3, cache_salt=b"salt")
    rig.add("two", A, ids=IDS, out=3, cache_salt=b"salt")
    plan = rig.scheduler.plan()
    assert plan is not None
    fault_in_first_row(rig, plan)
    assert cached_pages(rig) == 0


def test_one_that_goes_on_after_its_slot_was_lost_publishes_nothing_more() -> None:
    rig = Rig()
    rig.add("one", A, ids=IDS[:3], out=20, cache_salt=b"salt")
    rig.step()
    rig.scheduler.slot_lost(A.key)
    rig.run_out()
    assert cached_pages(rig) == 0


def test_followers_share_the_pages_of_a_leader_whose_prompt_is_scored() -> None:
    rig = rig_of()
    add(rig, output=OutputParams(prompt_logprobs=0))
    rig.run_out()
    assert [ending(rig, name).cached_prompt_tokens for name in ("r", "r.1", "r.2")] == [0, 8, 8]

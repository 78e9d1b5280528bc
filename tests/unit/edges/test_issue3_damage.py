"""An adapter's bytes on the device changed, nobody knows since when: nothing that was computed with them is stated."""

from __future__ import annotations

import pytest

from lorry.errors import AdapterLoadFailed, SlotIntegrity
from lorry.ids import RequestId
from lorry.request import OutputParams
from lorry.scheduler import SequenceResult, StepPlan, StepResult
from tests.unit.residency.memory_host import version
from tests.unit.scheduler.rig import Rig

A, B = version("a", 8), version("b", 8)
IDS = tuple(range(10, 26))


def plan_of(rig: Rig) -> StepPlan:
    plan = rig.scheduler.plan()
    assert plan is not None
    return plan


def test_whoever_was_preempted_from_the_slot_ends() -> None:
    rig = Rig(overcommit=True)
    rig.add("one", A, ids=IDS, out=12, cache_salt=b"salt")
    for _ in range(4):
        rig.step()
    rig.scheduler.preempt(RequestId("one"))
    rig.scheduler.slot_lost(A.key)
    rig.step()
    assert isinstance(rig.error("one"), SlotIntegrity)
    assert rig.all_free()


def test_scores_of_a_prompt_are_no_better_than_its_tokens() -> None:
    rig = Rig(overcommit=True, chunk_tokens=4)
    rig.add("one", A, ids=IDS, out=12, output=OutputParams(None, 0))
    rig.step()
    assert rig.of("one")[0].prompt_logprobs
    rig.scheduler.preempt(RequestId("one"))
    rig.scheduler.slot_lost(A.key)
    rig.step()
    assert isinstance(rig.error("one"), SlotIntegrity)


def test_a_step_under_way_publishes_nothing_of_it() -> None:
    rig = Rig()
    rig.add("one", A, ids=IDS, out=12, cache_salt=b"salt")
    plan = plan_of(rig)
    rig.scheduler.slot_lost(A.key)
    rig.scheduler.complete(plan, rig.device.run(plan))
    rig.scheduler.check_integrity()
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 0


@pytest.mark.parametrize("leaves", [True, False], ids=["its reader leaves", "it stays"])
def test_whoever_comes_next_is_served_from_a_new_load(leaves: bool) -> None:
    """The slot is empty for the scheduler too, although the last that ran from it had no step that could fault."""
    rig = Rig()
    rig.add("one", A, ids=IDS, out=12)
    rig.step()
    rig.scheduler.slot_lost(A.key)
    if leaves:
        rig.scheduler.abort(RequestId("one"))
    rig.add("next", A, ids=IDS, out=3)
    rig.run_out()
    assert rig.device.loads == 2
    assert rig.error("next") is None
    assert rig.error("one") is not None


def test_a_load_that_failed_says_nothing_about_what_was_computed_before() -> None:
    """The device has no fill for the rows of a failed load either, and says so."""
    rig = Rig(overcommit=True, slots=1, chunks=1, sequences=1)
    rig.add("old", A, ids=IDS, out=12, cache_salt=b"salt")
    for _ in range(3):
        rig.step()
    rig.scheduler.preempt(RequestId("old"))
    rig.add("other", B, out=2, priority=2, tenant="u")
    while rig.device.loads < 2:
        rig.step()
    rig.add("mate", A, ids=IDS[:6], out=2, priority=1, tenant="v")
    plan = plan_of(rig)
    while not plan.loads:
        rig.updates += rig.scheduler.complete(plan, rig.device.run(plan))
        plan = plan_of(rig)
    load, pages = plan.loads[0], rig.scheduler.state()["prefix_cache"]["pages"]
    rows = tuple(SequenceResult(row.sequence, (), None, "SLOT_INTEGRITY") for row in plan.sequences)
    result = StepResult(plan.step, rows, 0.0, ((load.slot, "its host copy is gone"),))
    rig.updates += rig.scheduler.complete(plan, result)
    rig.events += rig.scheduler.drain_events()
    rig.scheduler.check_integrity()
    assert [type(rig.error(name)) for name in ("old", "mate")] == [type(None), AdapterLoadFailed]
    assert rig.scheduler.state()["prefix_cache"]["pages"] == pages > 0

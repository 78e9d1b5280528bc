"""Guards of the scheduler that no other test misses when they are gone."""

from __future__ import annotations

import pytest

from lorry.errors import InternalError, Overloaded, SlotIntegrity
from lorry.ids import AdapterKey, RequestId
from lorry.scheduler import SequenceResult, StepResult
from tests.unit.residency.memory_host import version
from tests.unit.scheduler.rig import Rig

A, B = version("a", 8), version("b", 8)
IDS = tuple(range(10, 26))


@pytest.mark.parametrize("adapter", [B.key, None], ids=["another", "the base"])
def test_a_decode_on_another_adapter_ends_its_request(adapter: AdapterKey | None) -> None:
    """The same as for the first token, on the short path that nearly all decodes take."""
    rig = Rig()
    rig.add("one", A, out=8)
    rig.step()
    rig.step()
    plan = rig.scheduler.plan()
    assert plan is not None
    rows = tuple(SequenceResult(row.sequence, (7,), adapter) for row in plan.sequences)
    rig.updates += rig.scheduler.complete(plan, StepResult(plan.step, rows, 0.0))
    rig.events += rig.scheduler.drain_events()
    assert isinstance(rig.error("one"), SlotIntegrity)
    assert sum(len(update.tokens) for update in rig.of("one")) == 2
    assert A.key not in rig.residency.resident, "the slot is loaded again before anybody else runs from it"
    rig.scheduler.check_integrity()


def test_choices_that_follow_count_as_waiting() -> None:
    rig = Rig(queue=3, sequences=1)
    rig.add("one", ids=IDS)
    for choice in (1, 2):
        rig.add(f"one/{choice}", ids=IDS, choice=choice, after=RequestId("one"))
    with pytest.raises(Overloaded, match="max_queue = 3"):
        rig.add("two", tenant="u")


def test_a_failed_load_is_no_fault_of_one_that_was_preempted_from_it_meanwhile() -> None:
    rig = Rig(overcommit=True)
    rig.add("one", A, ids=IDS, out=3)
    plan = rig.scheduler.plan()
    assert plan is not None
    assert plan.loads
    rig.scheduler.preempt(RequestId("one"))
    rig.updates += rig.scheduler.complete(plan, rig.device.run(plan, fail_slots=frozenset({plan.loads[0].slot})))
    rig.scheduler.check_integrity()
    rig.run_out()
    assert rig.error("one") is None
    assert rig.of("one")[-1].finish is not None


def test_nobody_is_preempted_while_a_step_under_way_gives_pages_back() -> None:
    rig = Rig(pages=4, chunks=1, slots=1, context=16, sequences=2, overcommit=True)
    rig.add("stays", prompt=4, out=12)
    rig.add("leaves", prompt=2, out=8)
    for _ in range(4):
        rig.step()
    under_way = rig.scheduler.plan()
    assert under_way is not None
    assert rig.ledger.use().pages_free == 0
    rig.scheduler.abort(RequestId("leaves"))
    assert rig.scheduler.plan() is None, "it needs a page, and waits for it"
    assert rig.scheduler.state()["preemptions"] == 0
    rig.updates += rig.scheduler.complete(under_way, rig.device.run(under_way))
    rig.run_out()
    assert rig.of("stays")[-1].finish is not None
    assert rig.scheduler.state()["preemptions"] == 0


def test_choices_that_follow_count_as_their_tenants() -> None:
    rig = Rig(queue_per_tenant=3, sequences=1)
    rig.add("one", ids=IDS)
    for choice in (1, 2):
        rig.add(f"one/{choice}", ids=IDS, choice=choice, after=RequestId("one"))
    with pytest.raises(Overloaded, match="max_queue_per_tenant = 3"):
        rig.add("two")
    rig.add("two", tenant="u")


def test_room_that_cannot_be_made_costs_nobody_anything() -> None:
    """Adapters that somebody waits for would have to go, which is not asked for: the cached prefix stays too."""
    rig = Rig(pages=8, chunks=2, slots=2, context=32, overcommit=True)
    rig.add("cached", ids=IDS[:8], out=1, cache_salt=b"salt")
    rig.run_out()
    for name, ref in (("a", A), ("b", B)):
        rig.add(name, ref, prompt=4, out=8)
    rig.step()
    for name in ("a", "b"):
        assert rig.scheduler.preempt(RequestId(name))
    reclaimer, pages = rig.scheduler._reclaimer, rig.scheduler.state()["prefix_cache"]["pages"]
    assert not reclaimer.secure(rig.ledger.split.pages)
    assert rig.scheduler.state()["prefix_cache"]["pages"] == pages == 2
    assert reclaimer.secure(rig.ledger.split.pages, force=True)


def test_results_come_in_the_order_of_the_plans() -> None:
    rig = Rig()
    rig.add("one")
    first, second = rig.scheduler.plan(), rig.scheduler.plan()
    assert first is not None
    assert second is not None
    rig.device.run(first)
    with pytest.raises(InternalError, match="step 1 was completed"):
        rig.scheduler.complete(second, rig.device.run(second))

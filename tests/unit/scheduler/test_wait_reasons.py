"""Each request that waits says why, by the last plan: every reason of an engine's, with the scheduler's real parts."""

from __future__ import annotations

import pytest

from lorry.scheduler import AgeingBound
from lorry.scheduler.reasons import WaitReason
from tests.unit.residency.memory_host import version
from tests.unit.scheduler.rig import Rig

NEVER = AgeingBound(plans=1 << 30, seconds=1e9)


def reasons(rig: Rig) -> dict[str, str]:
    return {one.request_id: str(one.reason) for one in rig.scheduler.queue()}


def test_one_that_no_plan_has_seen() -> None:
    rig = Rig()
    rig.add("a")
    assert reasons(rig) == {"a": WaitReason.ARRIVED}
    rig.step()
    assert reasons(rig) == {}


def test_an_adapter_on_its_way_whatever_else_is_short() -> None:
    rig = Rig(sequences=1, instant=False)
    rig.add("a", out=20)
    rig.add("b", version("x"))
    assert reasons(rig) == {"a": WaitReason.ARRIVED, "b": WaitReason.ADAPTER_LOAD}
    rig.step()
    assert reasons(rig) == {"b": WaitReason.ADAPTER_LOAD}
    rig.host.land(version("x").key)
    rig.step()
    assert reasons(rig) == {"b": WaitReason.BATCH_FULL}


def test_the_batch_is_full() -> None:
    rig = Rig(sequences=2)
    for name in "abcd":
        rig.add(name, out=8)
    rig.step()
    assert reasons(rig) == dict.fromkeys("cd", WaitReason.BATCH_FULL)
    waiting = rig.scheduler.queue()
    assert [one.tenant for one in waiting] == ["t", "t"]
    assert all(one.seconds == pytest.approx(0.01) and one.prompt_tokens == 4 for one in waiting)


def test_the_steps_tokens_are_others() -> None:
    rig = Rig(sequences=4, budget=4, chunk_tokens=4)
    for name in "ab":
        rig.add(name, prompt=4)
    rig.step()
    assert reasons(rig) == {"b": WaitReason.TOKEN_BUDGET}


def test_kv_pages_are_others() -> None:
    rig = Rig(pages=4, chunks=1, slots=1, context=16, ageing=NEVER)
    rig.add("a", prompt=4, out=12)
    rig.add("b", prompt=4, out=12)
    rig.step()
    assert reasons(rig) == {"b": WaitReason.KV_PAGES}


def test_every_slot_is_others_and_so_for_all_of_the_lane() -> None:
    rig = Rig(slots=1, chunks=1, sequences=4, ageing=NEVER)
    rig.add("a", version("a"), out=20)
    rig.step()
    for i in range(12):
        rig.add(f"b{i}", version("b"))
    rig.add("other", version("c"), tenant="u")
    rig.step()
    assert reasons(rig) == dict.fromkeys([f"b{i}" for i in range(12)] + ["other"], WaitReason.ADAPTER_SLOTS)


def test_rank_rows_are_others() -> None:
    rig = Rig(slots=4, chunks=4, max_rank=16, sequences=4, ageing=NEVER)
    rig.add("a", version("a", 16), out=20)
    rig.add("b", version("b", 8), out=20)
    rig.step()
    rig.add("c", version("c", 16))
    rig.add("d", version("d", 16), tenant="u")
    rig.step()
    assert reasons(rig) == dict.fromkeys("cd", WaitReason.RANK_ROWS)


def test_extras_are_others() -> None:
    rig = Rig(slots=4, chunks=4, extras=100, sequences=4, ageing=NEVER)
    rig.add("a", version("a", 8, 60), out=20)
    rig.step()
    rig.add("b", version("b", 8, 60))
    rig.step()
    assert reasons(rig) == {"b": WaitReason.ADAPTER_EXTRAS}


def test_bytes_for_an_adapter_beside_its_pages() -> None:
    """Slots, chunks and a page are free; of the budget two pages' worth is left."""
    rig = Rig(pages=8, chunks=4, slots=4, max_rank=16, context=20, sequences=8, ageing=NEVER, prefix_cache=False)
    rig.add("a", version("a"), prompt=4, out=16)
    rig.add("b", prompt=4, out=12)
    rig.step()
    use = rig.ledger.use()
    assert (use.bytes - use.bytes_used, use.pages_free - use.pages_promised) == (2000, 1)
    rig.add("c", version("c", 16), prompt=1, out=3)
    rig.step()
    assert reasons(rig) == {"c": WaitReason.ADAPTER_BYTES}


def test_what_another_starves_for_is_kept_for_it() -> None:
    rig = Rig(pages=8, chunks=1, slots=1, context=32, sequences=4, ageing=AgeingBound(plans=2, seconds=1e9))
    rig.add("a", prompt=4, out=20)
    rig.add("big", prompt=4, out=28)
    for _ in range(4):
        rig.step()
    rig.add("small", prompt=1, out=2, tenant="u")
    rig.step()
    assert reasons(rig) == {"big": WaitReason.KV_PAGES, "small": WaitReason.STARVING_FIRST}


def test_others_of_its_tenant_come_first() -> None:
    """Of a tenant that lacks pages only so many are tried; those behind wait for their turn."""
    rig = Rig(pages=4, chunks=1, slots=1, context=16, sequences=4, ageing=NEVER)
    rig.add("a", prompt=4, out=12)
    for i in range(12):
        rig.add(f"b{i}", prompt=4, out=12)
    rig.step()
    found = reasons(rig)
    assert found["b0"] == found["b8"] == WaitReason.KV_PAGES
    assert found["b9"] == found["b11"] == WaitReason.TURN


def test_further_choices_follow_the_first() -> None:
    rig = Rig()
    rig.add("a", out=8)
    rig.add("a/1", out=8, choice=1, after=rig.scheduler.queue()[0].request_id)
    assert reasons(rig) == {"a": WaitReason.ARRIVED, "a/1": WaitReason.FIRST_CHOICE}
    rig.step()
    rig.step()
    assert reasons(rig) == {}


def test_a_preempted_one_resumes() -> None:
    rig = Rig(sequences=2)
    a = rig.add("a", out=8)
    rig.add("b", out=8)
    rig.step()
    plan = rig.scheduler.plan()
    assert plan is not None
    assert rig.scheduler.preempt(a)
    (waiting,) = rig.scheduler.queue()
    assert (waiting.request_id, waiting.reason, waiting.preempted) == (a, WaitReason.RESUMING, 1)
    rig.scheduler.complete(plan, rig.device.run(plan))
    assert reasons(rig)["a"] in (WaitReason.TURN, WaitReason.KV_PAGES)


def test_a_reason_is_of_the_last_plan_alone() -> None:
    """What was short some plans ago is not said any more: first no slot, then no seat."""
    rig = Rig(slots=1, chunks=1, sequences=2, ageing=NEVER)
    rig.add("a", version("a"), out=20)
    rig.step()
    rig.add("b", version("b"))
    rig.step()
    assert reasons(rig) == {"b": WaitReason.ADAPTER_SLOTS}
    rig.add("c", out=20)
    rig.step()
    rig.step()
    assert reasons(rig) == {"b": WaitReason.BATCH_FULL}

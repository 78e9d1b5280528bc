"""Adapters that bring more than rank rows, or no rank rows: who is passed over for what, and that none starves."""

from __future__ import annotations

import pytest

from lorry.errors import AdapterLoadFailed
from lorry.ids import RequestId
from lorry.memory import AdapterNeed
from lorry.scheduler import AgeingBound
from lorry.scheduler.entry import Lack
from lorry.scheduler.waiting import class_of
from tests.unit.residency.memory_host import key_of, version
from tests.unit.scheduler.rig import Rig

NEVER = AgeingBound(plans=10**9, seconds=10.0**9)


def test_an_adapter_without_rank_rows_runs_beside_others() -> None:
    rig = Rig(slots=4, extras=100)
    for name, ref in (("ia3", version("i", 0, 60)), ("lora", version("l", 8)), ("nothing", version("n", 0))):
        rig.add(name, ref)
    plan = rig.step()
    assert plan is not None
    assert sorted(len(load.chunks) for load in plan.loads) == [0, 0, 1]
    assert plan.distinct_adapters == 3
    rig.run_out()
    assert rig.all_free()
    assert rig.ledger.use().extras_used == 60


def test_want_of_extras_keeps_no_adapter_out_that_needs_none() -> None:
    """Of one tenant, in one plan: what needs no chunk and many bytes fails first, and says nothing of the rest."""
    rig = Rig(slots=6, chunks=4, extras=100, ageing=NEVER)
    rig.add("first", version("e", 0, 80), out=20)
    rig.step()
    rig.add("bytes", version("f", 0, 30))
    rig.add("chunk", version("g", 8))
    rig.add("few", version("h", 8, 20))
    rig.step()
    assert rig.started == ["first", "chunk", "few"]
    rig.run_out()
    assert rig.started[-1] == "bytes"


def test_want_of_chunks_keeps_no_adapter_out_that_needs_only_extras() -> None:
    rig = Rig(slots=6, chunks=2, extras=100, max_rank=16, ageing=NEVER)
    rig.add("a", version("a", 8), out=20)
    rig.step()
    rig.add("wide", version("w", 16))
    rig.add("wider", version("v", 16, 10))
    rig.add("bytes", version("f", 0, 90))
    rig.add("both", version("g", 8, 10))
    rig.add("none", version("n", 0))
    rig.step()
    assert rig.started == ["a", "bytes", "both", "none"]
    rig.run_out()


def test_what_failed_is_not_tried_again_in_a_plan_nor_what_needs_more_of_both() -> None:
    rig = Rig(slots=6, chunks=2, extras=100, max_rank=16, ageing=NEVER)
    rig.add("a", version("a", 8, 60), out=20)
    rig.step()
    tried: list[AdapterNeed] = []
    found = rig.residency.room_for

    def room_for(owner: RequestId, *, force: bool = False) -> object:
        tried.append(rig.residency.need_of(key_of(owner)))
        return found(owner, force=force)

    rig.residency.room_for = room_for  # type: ignore[method-assign, assignment]  # counted in passing
    needs = {"w": (16, 0), "e": (0, 50), "ww": (16, 10), "both": (16, 50), "ee": (0, 60), "one": (8, 41)}
    for name, (rank, extra_bytes) in needs.items():
        rig.add(name, version(name, rank, extra_bytes))
    rig.step()
    assert tried == [(2, 0), (0, 50), (1, 41)], "the others need no less of both than one that failed"
    assert rig.started == ["a"]
    waiting = list(rig.scheduler._waiting.entries())
    assert [entry.lack for entry in waiting] == [Lack.ROOM] * 6, "they were passed over all the same, and age"
    rig.run_out()


def test_extras_go_only_for_who_needs_them() -> None:
    """Idle adapters with extras leave one by one, the longest unused first, and those without stay."""
    rig = Rig(slots=6, chunks=4, extras=100)
    for name, extra_bytes in (("plain", 0), ("x", 50), ("y", 50)):
        rig.add(name, version(name, 8, extra_bytes), out=1)
        rig.run_out()
    rig.add("z", version("z", 8, 40), out=1)
    plan = rig.step()
    assert plan is not None
    assert len(plan.unloads) == 1
    assert {slot["digest"] for slot in rig.scheduler.state()["slots"]} == {"plain", "y", "z"}


@pytest.mark.parametrize("ageing", [AgeingBound(plans=5, seconds=1e9), NEVER], ids=["aged", "never"])
def test_one_that_needs_all_extras_does_not_starve_behind_a_stream_of_small_ones(ageing: AgeingBound) -> None:
    """Two small ones keep each other's bytes pinned: there is a slot and a chunk, but never all the bytes."""
    rig = Rig(slots=4, sequences=6, extras=100, ageing=ageing)
    rig.add("s0", version("s0", 0, 40), out=4)
    rig.step()
    rig.add("all", version("all", 8, 100), out=2)
    for i in range(1, 40):
        rig.add(f"s{i}", version(f"s{i % 2}", 0, 40), out=4)
        rig.add(f"plain{i}", version("plain", 8), tenant="other", out=1)
        rig.step()
        if "all" in rig.started:
            break
    if ageing is NEVER:
        assert "all" not in rig.started, "the test shows nothing unless this holds"
        return
    assert "all" in rig.started
    assert i <= 5 + 4 + 1, "the bound, the longest of those that ran, and one to join"
    assert f"plain{i - 1}" in rig.started, "those that lie in slots that need not drain go on"
    rig.run_out()


@pytest.mark.parametrize("ageing", [AgeingBound(plans=4, seconds=1e9), NEVER], ids=["aged", "never"])
def test_one_whose_extras_lack_bytes_does_not_starve_behind_pages(ageing: AgeingBound) -> None:
    """Base requests keep nearly all bytes; the adapter fits slots and bounds and wants ten pages' bytes."""
    rig = Rig(pages=16, chunks=1, extras=10_000, context=64, sequences=16, ageing=ageing)
    assert rig.ledger.split.pages == 26
    for i in range(4):
        rig.add(f"first{i}", prompt=4, out=20 - 3 * i)
    rig.step()
    rig.add("head", version("h", 0, 10_000), prompt=4, out=4)
    for i in range(60):
        for j in range(3):
            rig.add(f"small{i}.{j}", prompt=4, out=4)
        rig.step()
        if "head" in rig.started:
            break
    if ageing is NEVER:
        assert "head" not in rig.started
        return
    assert "head" in rig.started
    assert i <= 4 + 20 + 1, "the bound, then the longest that ran"
    rig.run_out()
    assert rig.all_free()


def test_extras_over_the_cap_end_that_request_alone() -> None:
    rig = Rig(extras=100, instant=False)
    rig.add("huge", version("huge", 8, 101))
    rig.add("fits", version("fits", 8, 100))
    for name in ("huge", "fits"):
        rig.host.land(key_of(name))
    rig.run_out()
    error = rig.error("huge")
    assert isinstance(error, AdapterLoadFailed)
    assert "101 bytes" in str(error)
    assert "0 to 100" in str(error)
    assert rig.error("fits") is None


def test_extras_of_one_that_was_cut_wait_for_the_step_that_reads_them() -> None:
    """Its slot is lost while a second plan with it is under way: another gets the bytes once that is done."""
    rig = Rig(slots=4, extras=100, ageing=NEVER)
    rig.add("one", version("one", 8, 100), out=9)
    first = rig.scheduler.plan()
    second = rig.scheduler.plan()
    assert first is not None
    assert second is None or second.step == 1
    rig.scheduler.abort(RequestId("one"))
    rig.scheduler.slot_lost(key_of("one"))
    assert rig.ledger.use().extras_pending == 100
    rig.add("two", version("two", 0, 1), out=1)
    assert rig.scheduler.plan() is None
    for plan in (first, second):
        if plan is not None:
            rig.scheduler.complete(plan, rig.device.run(plan))
            rig.scheduler.check_integrity()
    rig.run_out()
    assert rig.error("two") is None
    assert rig.ledger.use().extras_used == 1


def test_over_commit_takes_the_memory_of_idle_extras_for_pages() -> None:
    rig = Rig(pages=12, chunks=1, extras=4000, context=48, overcommit=True)
    for ref in (version("nothing", 0, 0), version("h", 0, 4000)):
        rig.add(str(ref.key), ref, prompt=4, out=1)
        rig.run_out()
    assert rig.ledger.use().extras_used == 4000
    rig.add("long", prompt=4, out=44)
    rig.add("longer", prompt=4, out=44)
    rig.run_out()
    assert rig.ledger.use().extras_used == 0, "24 pages were wanted, of 16, four of them in its bytes"
    assert [slot["digest"] for slot in rig.scheduler.state()["slots"]] == ["nothing"], "its going would give none"


def test_the_bytes_of_what_leaves_its_slot_are_those_of_what_comes() -> None:
    rig = Rig(pages=12, chunks=1, extras=4000, context=48)
    rig.add("head", version("h", 0, 4000), out=1)
    rig.run_out()
    rig.add("base", prompt=4, out=40)
    rig.step()
    assert rig.ledger.bytes_free == 2000
    rig.add("other", version("g", 0, 4000), prompt=4, out=4)
    rig.step()
    assert rig.started == ["head", "base", "other"]
    rig.run_out()


def test_a_class_of_needs_spans_less_than_a_factor_of_two() -> None:
    assert class_of(AdapterNeed(0, 0)) == (0, 0)
    assert class_of(AdapterNeed(1, 1)) == (1, 1)
    assert class_of(AdapterNeed(2, 4096)) == class_of(AdapterNeed(3, 8191)) != class_of(AdapterNeed(4, 8191))
    assert class_of(AdapterNeed(2, 8192)) != class_of(AdapterNeed(2, 8191))


def test_adapters_of_any_number_of_sizes_are_a_few_lanes_to_look_at() -> None:
    rig = Rig(pages=160, slots=2, sequences=8, context=300, extras=100_000, ageing=NEVER)
    for name in "ab":
        rig.add(name, version(name), out=200)
    rig.step()
    for i in range(200):
        rig.add(f"r{i}", version(f"v{i}", 8 * (i % 2), 40_000 + i), out=1)
    tenant = rig.scheduler._waiting.in_turn()[0]
    fronts = rig.scheduler._waiting.fronts(tenant, rig.residency.resident)
    assert [lane.entries[0].request.request_id for lane in fronts] == [f"r{i}" for i in range(8)]
    rig.run_out(2000)
    assert len(rig.started) == 202


def test_of_many_classes_the_first_lanes_by_rank_are_looked_at_and_the_others_come_in_time() -> None:
    rig = Rig(pages=160, slots=2, sequences=8, context=300, extras=1 << 20, max_rank=64, chunks=16, ageing=NEVER)
    for name in "ab":
        rig.add(name, version(name), out=100)
    rig.step()
    for i in range(80):
        rig.add(f"r{i}", version(f"v{i}", 8 << (i % 4), 1 << (i % 20)), out=1)
    tenant = rig.scheduler._waiting.in_turn()[0]
    fronts = rig.scheduler._waiting.fronts(tenant, rig.residency.resident)
    assert [lane.entries[0].request.request_id for lane in fronts] == [f"r{i}" for i in range(32)]
    rig.run_out(2000)
    assert len(rig.started) == 82

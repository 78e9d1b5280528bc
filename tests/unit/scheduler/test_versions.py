"""A version taken off the device or forgotten: what runs on it ends or forbids it, and no other notices."""

from __future__ import annotations

import pytest

from lorry.errors import AdapterCold, AdapterObjectMissing, FailedPrecondition
from tests.unit.residency.memory_host import version
from tests.unit.scheduler.rig import Rig
from tests.unit.scheduler.test_choices import ending
from tests.unit.scheduler.test_lost_slots import cached_pages

A, B = version("a"), version("b")
THEIRS = version("a", scope="theirs")
"""The bytes of A, of another adapter."""
IDS = tuple(range(10, 26))
GONE = AdapterObjectMissing("purged")


def test_an_idle_one_is_evicted_and_comes_again() -> None:
    rig = Rig()
    rig.add("first", A, ids=IDS, out=2)
    rig.run_out()
    versions = rig.scheduler.versions
    assert versions.tier_of(A.key) == "device"
    assert versions.evict(A.key)
    assert not versions.evict(A.key)
    assert versions.tier_of(A.key) == "host"
    again = rig.add("again", A, ids=IDS, out=2)
    rig.run_out()
    assert rig.error(again) is None
    assert rig.all_free()


@pytest.mark.parametrize("steps", [0, 1])
def test_one_that_is_wanted_is_not_evicted(steps: int) -> None:
    rig = Rig()
    request = rig.add("r", A, ids=IDS, out=3)
    for _ in range(steps):
        rig.step()
    with pytest.raises(FailedPrecondition, match="1 requests"):
        rig.scheduler.versions.evict(A.key)
    rig.run_out()
    assert rig.error(request) is None


def test_forgetting_ends_what_runs_waits_or_was_preempted_and_nothing_else() -> None:
    rig = Rig(overcommit=True)
    running, parked = (rig.add(name, A, ids=IDS, out=6, cache_salt=b"salt") for name in ("running", "parked"))
    other = rig.add("other", B, ids=IDS, out=6, cache_salt=b"salt")
    base = rig.add("base", None, ids=IDS, out=6, cache_salt=b"salt")
    rig.step()
    rig.step()
    assert rig.scheduler.preempt(parked)
    waiting = rig.add("waiting", A, ids=IDS, out=6, cache_salt=b"salt")
    before = cached_pages(rig)
    slots, pages = rig.scheduler.versions.forget(A.key, GONE)
    assert (slots, cached_pages(rig)) == (1, before - pages)
    assert pages > 0
    assert rig.scheduler.versions.live_on(A.key) == 0
    rig.run_out()
    assert [rig.error(one) for one in (running, parked, waiting)] == [GONE] * 3
    assert [ending(rig, one).output_tokens for one in (other, base)] == [6, 6]
    assert rig.scheduler.versions.forget(A.key, GONE) == (0, 0)
    assert rig.all_free()


def test_while_a_step_that_reads_it_is_under_way() -> None:
    """The slot is not filled again before that step is done."""
    rig = Rig(slots=1)
    rig.add("begun", A, ids=IDS, out=6)
    plan = rig.scheduler.plan()
    assert plan is not None
    assert rig.scheduler.versions.forget(A.key, GONE)[0] == 1
    rig.add("next", B, ids=IDS, out=2)
    assert rig.scheduler.plan() is None
    rig.scheduler.check_integrity()
    assert rig.scheduler.versions.live_on(A.key) == 0


def test_equal_bytes_of_another_adapter_are_nothing_to_it() -> None:
    """Not where they are, not what runs on them, not what was computed with them."""
    rig = Rig(overcommit=True)
    rig.add("theirs", THEIRS, ids=IDS, out=12, cache_salt=b"salt")
    rig.step()
    theirs_pages = cached_pages(rig)
    versions = rig.scheduler.versions
    assert (versions.tier_of(THEIRS.key), versions.tier_of(A.key)) == ("device", "object_store")
    assert (versions.live_on(THEIRS.key), versions.live_on(A.key)) == (1, 0)
    assert not versions.evict(A.key)
    assert versions.forget(A.key, GONE) == (0, 0)
    with pytest.raises(AdapterCold, match="object_store"):
        rig.add("rejects", A, ids=IDS, out=2, reject_cold=True)
    ours = rig.add("ours", A, ids=IDS, out=2, cache_salt=b"salt")
    rig.step()
    assert [row["digest"] for row in rig.scheduler.state()["slots"]] == ["a", "a"]
    while rig.scheduler.versions.live_on(A.key):
        rig.step()
    assert ending(rig, ours).cached_prompt_tokens == 0, "one salt, and still none of their pages"
    assert versions.evict(A.key), "although theirs runs"
    slots, pages = versions.forget(A.key, GONE)
    assert (slots, cached_pages(rig)) == (0, theirs_pages)
    assert pages > 0
    rig.scheduler.slot_lost(A.key)
    rig.run_out()
    assert rig.error("theirs") is None
    assert ending(rig, "theirs").output_tokens == 12
    assert cached_pages(rig) >= theirs_pages
    again = rig.add("again", THEIRS, ids=IDS, out=2, cache_salt=b"salt")
    rig.run_out()
    assert ending(rig, again).cached_prompt_tokens > 0
    assert rig.all_free()

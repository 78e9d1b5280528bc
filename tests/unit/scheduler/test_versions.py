"""A version taken off the device or forgotten: what runs on it ends or forbids it, and no other notices."""

from __future__ import annotations

import pytest

from lorry.errors import AdapterObjectMissing, FailedPrecondition
from tests.unit.residency.memory_host import version
from tests.unit.scheduler.rig import Rig
from tests.unit.scheduler.test_choices import ending
from tests.unit.scheduler.test_lost_slots import cached_pages

A, B = version("a"), version("b")
IDS = tuple(range(10, 26))
GONE = AdapterObjectMissing("purged")


def test_an_idle_one_is_evicted_and_comes_again() -> None:
    rig = Rig()
    rig.add("first", A, ids=IDS, out=2)
    rig.run_out()
    versions = rig.scheduler.versions
    assert versions.tier_of(A.digest) == "device"
    assert versions.evict(A.digest)
    assert not versions.evict(A.digest)
    assert versions.tier_of(A.digest) == "host"
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
        rig.scheduler.versions.evict(A.digest)
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
    slots, pages = rig.scheduler.versions.forget(A.digest, GONE)
    assert (slots, cached_pages(rig)) == (1, before - pages)
    assert pages > 0
    assert rig.scheduler.versions.live_on(A.digest) == 0
    rig.run_out()
    assert [rig.error(one) for one in (running, parked, waiting)] == [GONE] * 3
    assert [ending(rig, one).output_tokens for one in (other, base)] == [6, 6]
    assert rig.scheduler.versions.forget(A.digest, GONE) == (0, 0)
    assert rig.all_free()


def test_while_a_step_that_reads_it_is_under_way() -> None:
    """The slot is not filled again before that step is done."""
    rig = Rig(slots=1)
    rig.add("begun", A, ids=IDS, out=6)
    plan = rig.scheduler.plan()
    assert plan is not None
    assert rig.scheduler.versions.forget(A.digest, GONE)[0] == 1
    rig.add("next", B, ids=IDS, out=2)
    assert rig.scheduler.plan() is None
    rig.scheduler.check_integrity()
    assert rig.scheduler.versions.live_on(A.digest) == 0

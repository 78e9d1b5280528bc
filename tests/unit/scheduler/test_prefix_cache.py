"""Who finds whose prefix: pairs that differ in one thing, and what a hit saves."""

from __future__ import annotations

from typing import Any

import pytest

from lorry.ids import RequestId, SlotId
from lorry.request import OutputParams
from lorry.scheduler import Ending
from tests.unit.residency.memory_host import version
from tests.unit.scheduler.rig import Rig

A, A2 = version("a"), version("a2")
IDS = tuple(range(10, 26))
"""Four pages."""


def served(rig: Rig, name: str, **asked: Any) -> tuple[int, int]:
    """Run one request alone: cached prompt tokens, and tokens computed up to its first."""
    before = rig.device.computed
    usual: dict[str, Any] = {"ref": None, "ids": IDS, "out": 1, "cache_salt": b"salt"}
    rig.add(name, **usual | asked)
    rig.run_out()
    return ending(rig, name).cached_prompt_tokens, rig.device.computed - before


def ending(rig: Rig, name: str) -> Ending:
    (found,) = [update.finish for update in rig.of(name) if update.finish is not None]
    return found


def test_the_same_prompt_of_the_same_tenant_and_salt_computes_one_token() -> None:
    rig = Rig()
    assert served(rig, "one") == (0, 16)
    assert served(rig, "two") == (15, 1), "the last, for its logits"
    assert served(rig, "three") == (15, 1)
    assert rig.all_free()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_a_longer_prompt_computes_what_follows_the_shared_pages(length: int) -> None:
    rig = Rig()
    served(rig, "one")
    assert served(rig, "two", ids=(*IDS, *range(length))) == (16, length)


def test_a_prefix_of_what_is_cached_is_found_as_far_as_its_full_pages_go() -> None:
    rig = Rig()
    served(rig, "one")
    assert served(rig, "two", ids=IDS[:11]) == (8, 3)
    assert served(rig, "three", ids=IDS[:8]) == (7, 1)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({}, {"cache_salt": b"salt2"}),
        ({}, {"cache_scope": "project"}),
        ({"cache_scope": "p"}, {"cache_scope": "q"}),
        ({"ref": A}, {"ref": A2}),
        ({"ref": A}, {}),
        ({}, {"ref": A}),
        ({}, {"ids": (9, *IDS[1:])}),
        ({"cache_salt": b""}, {"cache_salt": b""}),
        ({"cache_salt": b""}, {}),
        ({}, {"cache_salt": b""}),
    ],
    ids=["salt", "scope", "scopes", "version", "adapter_base", "base_adapter", "id", "none", "none_one", "one_none"],
)
def test_whoever_differs_in_one_thing_finds_nothing(one: dict[str, Any], two: dict[str, Any]) -> None:
    rig = Rig()
    served(rig, "one", **one)
    assert served(rig, "two", **two) == (0, 16)
    assert rig.all_free()


def test_the_same_version_finds_what_it_computed_even_after_it_was_loaded_anew() -> None:
    """Known by content, not by slot or generation."""
    rig = Rig(slots=1, chunks=1)
    served(rig, "one", ref=A)
    served(rig, "other", ref=A2)
    assert served(rig, "two", ref=A) == (15, 1)
    assert rig.device.loads == 3


@pytest.mark.parametrize(("changed", "cached"), [(0, 0), (3, 0), (4, 4), (7, 4), (8, 8), (15, 12)])
def test_one_changed_id_ends_the_shared_prefix_at_its_page(changed: int, cached: int) -> None:
    rig = Rig()
    served(rig, "one")
    ids = (*IDS[:changed], 99, *IDS[changed + 1 :])
    assert served(rig, "two", ids=ids) == (cached, 16 - cached)


def test_a_prompt_shorter_than_a_page_is_neither_kept_nor_found() -> None:
    rig = Rig()
    served(rig, "one", ids=IDS[:3])
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 0
    served(rig, "full")
    assert served(rig, "two", ids=IDS[:3]) == (0, 3)


def test_the_switch_turns_it_off() -> None:
    rig = Rig(prefix_cache=False)
    served(rig, "one")
    assert served(rig, "two") == (0, 16)
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 0


def test_the_output_is_cached_too_for_the_next_turn() -> None:
    rig = Rig(token=lambda _new, _adapter, index: 50 + index)
    served(rig, "one", out=9)
    whole = (*IDS, *range(50, 59))
    assert served(rig, "two", ids=(*whole, 1, 2)) == (24, 3), "the ninth token was never fed"


def test_prompt_logprobs_compute_the_whole_prompt_and_leave_it_for_others() -> None:
    rig = Rig()
    served(rig, "one")
    assert served(rig, "scored", output=OutputParams(prompt_logprobs=0)) == (0, 16)
    assert rig.ledger.use().pages_used == 4, "what was there already is kept once"
    assert served(rig, "two") == (15, 1)
    assert served(rig, "new", ids=IDS[::-1], output=OutputParams(prompt_logprobs=0)) == (0, 16)
    assert served(rig, "three", ids=IDS[::-1]) == (15, 1)


def test_logprobs_of_the_output_hit() -> None:
    rig = Rig()
    served(rig, "one")
    assert served(rig, "two", output=OutputParams(top_logprobs=0)) == (15, 1)


def test_two_that_run_share_the_pages() -> None:
    rig = Rig()
    rig.add("one", ids=IDS, out=8, cache_salt=b"salt")
    rig.step()
    assert rig.ledger.use().pages_used == 4
    rig.add("two", ids=(*IDS, 1), out=8, cache_salt=b"salt")
    plan = rig.step()
    assert plan is not None
    first, second = plan.sequences
    assert first.block_table[:4] == second.block_table[:4]
    assert (second.start, second.shared_pages) == (16, 4)
    rig.run_out()
    assert ending(rig, "two").cached_prompt_tokens == 16


def test_two_that_compute_the_same_at_once_keep_it_once() -> None:
    rig = Rig()
    for name in ("one", "two"):
        rig.add(name, ids=IDS, out=8, cache_salt=b"salt")
    rig.step()
    assert rig.ledger.use().pages_used == 4
    rig.run_out()
    assert [ending(rig, name).cached_prompt_tokens for name in ("one", "two")] == [0, 0]


def test_what_a_step_under_way_computes_is_not_found_before_it_is_done() -> None:
    rig = Rig()
    rig.add("one", ids=IDS, out=3, cache_salt=b"salt")
    first = rig.scheduler.plan()
    rig.add("two", ids=IDS, out=3, cache_salt=b"salt")
    second = rig.scheduler.plan()
    assert first is not None
    assert second is not None
    assert [row.start for row in second.sequences if row.query_len > 1] == [0]
    for plan in (first, second):
        rig.updates += rig.scheduler.complete(plan, rig.device.run(plan))
        rig.scheduler.check_integrity()
    rig.run_out()
    assert ending(rig, "two").cached_prompt_tokens == 0


def test_pages_that_are_computed_chunk_by_chunk_are_found_as_far_as_they_are() -> None:
    rig = Rig(budget=16, chunk_tokens=6, long_share=0.25)
    rig.add("one", ids=IDS, out=3, cache_salt=b"salt")
    rig.step()
    rig.add("two", ids=IDS, out=3, cache_salt=b"salt")
    rig.run_out()
    assert ending(rig, "two").cached_prompt_tokens == 4, "6 tokens were done when it came"


def test_after_eviction_it_is_gone() -> None:
    rig = Rig(pages=6, chunks=1, slots=1, context=24, sequences=1)
    served(rig, "one")
    served(rig, "large", ids=tuple(range(50, 73)), cache_salt=b"")
    assert rig.scheduler.state()["prefix_cache"]["evictions"] == 4
    assert served(rig, "two") == (0, 16)
    assert rig.all_free()


def test_eviction_takes_the_end_of_a_prefix_first() -> None:
    rig = Rig(pages=6, chunks=1, slots=1, context=24, sequences=1)
    served(rig, "one")
    served(rig, "middling", ids=tuple(range(50, 62)), cache_salt=b"", out=4)
    assert served(rig, "two") == (8, 8)


def test_what_was_used_last_is_found_longest() -> None:
    rig = Rig(pages=6, chunks=1, slots=1, context=24, sequences=1)
    served(rig, "one", ids=IDS[:8])
    served(rig, "two", ids=IDS[8:])
    assert served(rig, "one again", ids=IDS[:8]) == (7, 1)
    served(rig, "middling", ids=tuple(range(50, 62)), cache_salt=b"", out=4)
    assert served(rig, "first", ids=IDS[:8]) == (7, 1)
    assert served(rig, "second", ids=IDS[8:]) == (0, 8)


def test_nothing_of_an_adapter_whose_slot_was_lost_is_found() -> None:
    rig = Rig()
    served(rig, "a", ref=A)
    served(rig, "a2", ref=A2)
    served(rig, "base")
    rig.scheduler.slot_lost(A.key)
    rig.scheduler.check_integrity()
    assert served(rig, "a2 again", ref=A2) == (15, 1)
    assert served(rig, "base again") == (15, 1)
    assert served(rig, "a again", ref=A) == (0, 16)
    assert rig.device.loads == 3
    assert served(rig, "and again", ref=A) == (15, 1), "computed by the new load"


def test_a_slot_that_a_step_found_damaged_takes_its_prefixes_with_it() -> None:
    rig = Rig()
    served(rig, "one", ref=A)
    rig.device.slots[SlotId(0)] = (rig.device.slots[SlotId(0)][0], A2.key, rig.device.slots[SlotId(0)][2])
    rig.add("two", A, ids=IDS, out=3, cache_salt=b"salt")
    rig.run_out()
    assert rig.error("two") is not None
    assert served(rig, "three", ref=A) == (0, 16)


def test_a_faulted_step_publishes_nothing() -> None:
    rig = Rig()
    rig.add("one", ids=IDS, out=3, cache_salt=b"salt")
    plan = rig.scheduler.plan()
    assert plan is not None
    faults = {plan.sequences[0].sequence: "NON_FINITE_LOGITS"}
    rig.updates += rig.scheduler.complete(plan, rig.device.run(plan, faults=faults))
    rig.scheduler.check_integrity()
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 0
    assert served(rig, "two") == (0, 16)


def test_a_cancelled_request_leaves_what_it_computed() -> None:
    rig = Rig()
    rig.add("one", ids=IDS, out=30, cache_salt=b"salt")
    rig.step()
    rig.scheduler.abort(RequestId("one"))
    assert served(rig, "two") == (15, 1)


def test_a_resumed_request_finds_its_own_pages_and_the_count_is_that_of_its_first_start() -> None:
    rig = Rig(overcommit=True)
    rig.add("one", ids=IDS, out=12, cache_salt=b"salt")
    for _ in range(6):
        rig.step()
    before = rig.device.computed
    rig.scheduler.preempt(RequestId("one"))
    rig.step()
    assert rig.device.computed - before == 2, "20 of 22 ids lie in full pages that are cached"
    rig.run_out()
    assert ending(rig, "one").cached_prompt_tokens == 0


def test_cached_pages_count_as_room_for_whoever_comes() -> None:
    """A budget full of unused prefixes is an empty one."""
    rig = Rig(pages=8, chunks=1, slots=1, context=32, sequences=2)
    for i in range(4):
        served(rig, f"r{i}", ids=tuple(range(100 * i, 100 * i + 20)), out=4)
    rig.add("one", prompt=12, out=4)
    rig.add("two", prompt=12, out=4)
    rig.step()
    assert rig.started[-2:] == ["one", "two"]
    rig.run_out()


def test_shared_pages_are_not_promised_a_second_time() -> None:
    """Seven pages would not hold two of these without sharing."""
    rig = Rig(pages=7, chunks=1, slots=1, context=28, sequences=2)
    rig.add("one", ids=IDS, out=4, cache_salt=b"salt")
    rig.step()
    rig.add("two", ids=IDS, out=4, cache_salt=b"salt")
    rig.step()
    assert rig.started == ["one", "two"]
    rig.run_out()
    assert ending(rig, "two").cached_prompt_tokens == 15

"""n choices of one request: the first computes the prompt, the others share its pages."""

from __future__ import annotations

from typing import Any

import pytest

from lorry.errors import DeadlineExceeded, ObjectStoreUnavailable, RequestCancelled
from lorry.ids import AdapterKey, RequestId, SequenceId
from lorry.request import OutputParams, SamplingParams
from lorry.scheduler import Ending, NewSequence
from tests.unit.residency.memory_host import version
from tests.unit.scheduler.rig import Rig

A = version("a")
IDS = tuple(range(10, 20))
"""Two full pages and half of one."""


def token(new: NewSequence, adapter: AdapterKey | None, index: int) -> int:
    return 100 + hash((new.token_ids[: new.prompt_tokens], adapter, new.choice, index)) % 1000


def rig_of(**more: Any) -> Rig:
    usual: dict[str, Any] = {"token": token, "budget": 16, "chunk_tokens": 4}
    return Rig(**usual | more)


def add(rig: Rig, n: int = 3, ref: Any = None, **asked: Any) -> list[RequestId]:
    """r, r.1, r.2 ..."""
    usual: dict[str, Any] = {"ids": IDS, "out": 5}
    asked = usual | asked
    return [
        rig.add(f"r.{c}" if c else "r", ref, choice=c, after=RequestId("r") if c else None, **asked) for c in range(n)
    ]


def ending(rig: Rig, name: str) -> Ending:
    (found,) = [update.finish for update in rig.of(name) if update.finish is not None]
    return found


def tokens(rig: Rig, name: str) -> list[int]:
    return [token for update in rig.of(name) for token in update.tokens]


def following(rig: Rig) -> int:
    return int(rig.scheduler.state()["following"])


def expected(choice: int, out: int = 5, ref: Any = None) -> list[int]:
    new = NewSequence(SequenceId(0), IDS, len(IDS), SamplingParams(), choice)
    return [token(new, None if ref is None else ref.key, index) for index in range(out)]


@pytest.mark.parametrize("salt", [b"", b"salt"], ids=["private", "cached"])
@pytest.mark.parametrize("ref", [None, A], ids=["base", "adapter"])
def test_followers_wait_for_the_prompt_and_share_its_full_pages(ref: Any, salt: bytes) -> None:
    rig = rig_of()
    add(rig, ref=ref, cache_salt=salt)
    for _ in range(2):
        rig.step()
        assert (rig.started, following(rig)) == (["r"], 2)
    rig.step()
    assert following(rig) == 0, "the third chunk ended the prompt"
    plan = rig.step()
    assert plan is not None
    assert rig.started == ["r", "r.1", "r.2"]
    leader, first, second = plan.sequences
    assert (first.start, first.query_len, first.shared_pages) == (8, 2, 2)
    assert leader.block_table[:2] == first.block_table[:2] == second.block_table[:2]
    assert len({leader.block_table[2], first.block_table[2], second.block_table[2]}) == 3
    assert [new.choice for new in plan.new] == [1, 2]
    rig.run_out()
    assert rig.device.computed == 10 + 2 + 2 + 3 * 4
    for choice, name in enumerate(("r", "r.1", "r.2")):
        assert tokens(rig, name) == expected(choice, ref=ref)
        assert ending(rig, name).cached_prompt_tokens == (8 if choice else 0)
    assert rig.all_free()


def test_without_a_salt_nothing_is_left_and_nobody_else_finds_it() -> None:
    rig = rig_of(sequences=4)
    add(rig)
    for _ in range(4):
        rig.step()
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 2
    rig.add("other", ids=IDS, out=1)
    rig.add("salted", ids=IDS, out=1, cache_salt=b"salt")
    rig.run_out()
    assert [ending(rig, name).cached_prompt_tokens for name in ("other", "salted")] == [0, 0]
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 2, "those of the salted one alone"
    rig.add("salted again", ids=IDS, out=1, cache_salt=b"salt")
    rig.run_out()
    assert ending(rig, "salted again").cached_prompt_tokens == 8


def test_two_requests_without_a_salt_do_not_share_with_each_other() -> None:
    rig = rig_of(sequences=8)
    for name in ("p", "q"):
        rig.add(name, ids=IDS, out=3)
        rig.add(f"{name}.1", ids=IDS, out=3, choice=1, after=RequestId(name))
    rig.run_out()
    assert [ending(rig, name).cached_prompt_tokens for name in ("p", "p.1", "q", "q.1")] == [0, 8, 0, 8]
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 0


def test_the_prompt_of_choices_with_a_salt_is_found_by_the_next_request() -> None:
    rig = rig_of()
    add(rig, cache_salt=b"salt")
    rig.run_out()
    rig.add("next", ids=IDS, out=1, cache_salt=b"salt")
    rig.run_out()
    assert ending(rig, "next").cached_prompt_tokens == 8


def test_the_switch_of_the_prefix_cache_does_not_part_choices() -> None:
    rig = rig_of(prefix_cache=False)
    add(rig, cache_salt=b"salt")
    rig.run_out()
    assert [ending(rig, name).cached_prompt_tokens for name in ("r", "r.1", "r.2")] == [0, 8, 8]
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 0


def test_a_prompt_shorter_than_a_page_is_computed_by_each() -> None:
    rig = rig_of()
    add(rig, ids=IDS[:3])
    rig.run_out()
    assert [ending(rig, name).cached_prompt_tokens for name in ("r", "r.1", "r.2")] == [0, 0, 0]
    assert rig.all_free()


def test_a_prompt_that_ends_with_a_page_costs_followers_one_token() -> None:
    rig = rig_of()
    add(rig, ids=IDS[:8])
    rig.run_out()
    assert [ending(rig, name).cached_prompt_tokens for name in ("r", "r.1", "r.2")] == [0, 7, 7]
    assert rig.device.computed == 8 + 1 + 1 + 3 * 4


@pytest.mark.parametrize("how", ["abort", "fault", "finish"])
@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_followers_of_a_leader_that_ends_early_run_on_their_own(how: str, chunks: int) -> None:
    rig = rig_of()
    add(rig)
    for _ in range(chunks):
        rig.step()
    assert following(rig) == 2
    if how == "fault":
        plan = rig.scheduler.plan()
        assert plan is not None
        faults = {plan.sequences[0].sequence: "NON_FINITE_LOGITS"}
        rig.updates += rig.scheduler.complete(plan, rig.device.run(plan, faults=faults))
    elif how == "abort" or not chunks:
        rig.scheduler.abort(RequestId("r"))
    else:
        assert rig.scheduler.finish(RequestId("r")) is not None
    assert following(rig) == 0
    rig.scheduler.check_integrity()
    rig.run_out()
    assert [tokens(rig, f"r.{choice}") for choice in (1, 2)] == [expected(1), expected(2)]
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 0
    assert rig.all_free()


def test_a_follower_that_is_cancelled_is_gone() -> None:
    rig = rig_of()
    _, one, two = add(rig, ref=A)
    rig.step()
    rig.scheduler.abort(one)
    rig.scheduler.check_integrity()
    assert following(rig) == 1
    rig.scheduler.abort(two)
    rig.scheduler.check_integrity()
    assert following(rig) == 0
    rig.run_out()
    assert rig.started == ["r"]
    assert isinstance(rig.error("r.1"), RequestCancelled)
    assert isinstance(rig.error("r.2"), RequestCancelled)
    assert tokens(rig, "r") == expected(0, ref=A)
    assert rig.all_free()


def test_finish_of_a_follower_that_never_ran_does_nothing() -> None:
    rig = rig_of()
    _, one, _ = add(rig)
    rig.step()
    assert rig.scheduler.finish(one) is None
    rig.run_out()
    assert tokens(rig, "r.1") == expected(1)


def test_the_leader_may_end_before_its_followers_and_they_keep_the_pages() -> None:
    rig = rig_of(sequences=2)
    rig.add("r", ids=IDS, out=1)
    for choice in (1, 2):
        rig.add(f"r.{choice}", ids=IDS, out=5, choice=choice, after=RequestId("r"), cache_salt=b"")
    rig.run_out()
    assert [tokens(rig, f"r.{choice}") for choice in (1, 2)] == [expected(1), expected(2)]
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 0
    assert rig.all_free()


def test_a_follower_whose_leader_is_unknown_or_done_is_a_request_like_others() -> None:
    rig = rig_of()
    rig.add("lost", ids=IDS, out=5, choice=1, after=RequestId("never was"))
    assert following(rig) == 0
    rig.run_out()
    assert tokens(rig, "lost") == expected(1)


def test_a_follower_that_comes_after_the_leaders_first_token_waits_for_nothing() -> None:
    rig = rig_of()
    rig.add("r", ids=IDS, out=9, cache_salt=b"salt")
    for _ in range(3):
        rig.step()
    rig.add("r.1", ids=IDS, out=5, choice=1, after=RequestId("r"), cache_salt=b"salt")
    assert following(rig) == 0
    rig.step()
    assert rig.started == ["r", "r.1"]
    rig.run_out()
    assert ending(rig, "r.1").cached_prompt_tokens == 8


def test_a_deadline_ends_a_follower() -> None:
    rig = rig_of(sequences=1)
    rig.add("other", out=30)
    rig.step()
    add(rig, deadline=rig.now + 0.05)
    rig.run_out()
    assert all(isinstance(rig.error(name), DeadlineExceeded) for name in ("r", "r.1", "r.2"))
    assert rig.all_free()


def test_the_leaders_queue_timeout_does_not_end_its_followers_unheard() -> None:
    """Followers have no queue of their own; once the leader is gone they wait and run like others."""
    rig = rig_of(sequences=1)
    rig.add("other", out=20)
    rig.step()
    add(rig, queue_deadline=rig.now + 0.05)
    rig.run_out()
    assert rig.error("r") is not None
    assert following(rig) == 0
    assert [tokens(rig, f"r.{choice}") for choice in (1, 2)] == [expected(1), expected(2)]


def test_a_failed_fetch_ends_all_choices() -> None:
    rig = rig_of(instant=False)
    add(rig, ref=A)
    rig.step()
    rig.host.fail(A.key, ObjectStoreUnavailable("the object store does not answer; retry later"))
    rig.step()
    assert all(isinstance(rig.error(name), ObjectStoreUnavailable) for name in ("r", "r.1", "r.2"))
    assert not rig.scheduler.has_work()
    assert rig.all_free()


def test_the_prompt_is_scored_by_the_first_choice_alone() -> None:
    rig = rig_of()
    add(rig, output=OutputParams(top_logprobs=0, prompt_logprobs=0))
    rig.run_out()
    scored = {name: [s.token_id for u in rig.of(name) for s in u.prompt_logprobs] for name in ("r", "r.1", "r.2")}
    assert scored == {"r": list(IDS[1:]), "r.1": [], "r.2": []}
    assert all(len([s for u in rig.of(name) for s in u.logprobs]) == 5 for name in scored)


def test_preempted_choices_resume_with_their_own_tokens() -> None:
    rig = rig_of(pages=8, chunks=1, slots=1, context=28, overcommit=True)
    add(rig, n=4, out=18)
    rig.run_out()
    assert rig.scheduler.state()["preemptions"] > 0
    for choice, name in enumerate(("r", "r.1", "r.2", "r.3")):
        assert tokens(rig, name) == expected(choice, 18)
    assert rig.scheduler.state()["prefix_cache"]["pages"] == 0
    assert rig.all_free()


def test_a_leader_that_is_preempted_in_its_prompt_still_leads() -> None:
    rig = rig_of(overcommit=True)
    add(rig)
    rig.step()
    assert rig.scheduler.preempt(RequestId("r"))
    assert following(rig) == 2
    rig.run_out()
    assert rig.started == ["r", "r", "r.1", "r.2"]
    assert [ending(rig, name).cached_prompt_tokens for name in ("r", "r.1", "r.2")] == [0, 8, 8]
    assert rig.all_free()

"""How a step's query tokens are shared: decodes, short prompts, long ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry.config import SchedulerConfig
from lorry.scheduler.budget import StepBudget, is_long
from lorry.scheduler.plan import StepPlan
from tests.unit.scheduler.rig import Rig


def budget(
    decodes: int = 0, *, any_long: bool = False, tokens: int = 64, chunk: int = 64, share: float = 0.25
) -> StepBudget:
    config = SchedulerConfig(
        max_sequences=16, token_budget=tokens, prefill_chunk_tokens=chunk, long_prefill_share=share
    )
    return StepBudget(config, decodes, any_long=any_long)


@pytest.mark.parametrize(("tokens", "left", "long"), [(64, 32, False), (64, 33, True), (16, 9, True), (1, 1, False)])
def test_a_prompt_is_long_of_which_more_than_half_a_budget_is_left(tokens: int, left: int, long: bool) -> None:
    assert is_long(SchedulerConfig(max_sequences=1, token_budget=tokens), left) is long


def test_decodes_come_off_the_top_a_token_each() -> None:
    assert budget(10).short_left == 54
    assert budget(16, tokens=16).short_left == 0


def test_short_prompts_leave_the_long_ones_their_share() -> None:
    step = budget(10, any_long=True)
    assert step.short_left == 38
    assert step.take_short(30) == 30
    assert step.take_short(30) == 8
    assert step.take_short(1) == 0
    assert step.share_long([100]) == [16]


def test_long_prompts_get_no_more_than_their_share_beside_others_even_if_there_is_more() -> None:
    assert budget(1, any_long=True).share_long([100, 100]) == [16, 0], "the first in rank first"
    step = budget(0, any_long=True)
    assert step.take_short(2) == 2
    assert step.share_long([100]) == [16]


def test_in_a_step_that_serves_nobody_else_they_get_all_of_it() -> None:
    assert budget(any_long=True).share_long([100]) == [64]
    assert budget(any_long=True, chunk=40).share_long([100, 100]) == [40, 24]
    assert budget(any_long=True).share_long([40, 100]) == [40, 24]


def test_a_long_prompt_that_joins_has_a_token_at_least() -> None:
    step = budget(1, any_long=True)
    step.hold()
    step.hold()
    assert step.share_long([100, 100, 100]) == [14, 1, 1]


def test_new_long_prompts_have_theirs_even_where_the_share_is_less() -> None:
    step = budget(60, share=0.01)
    for _ in range(3):
        assert step.short_left > 0
        step.hold()
    assert step.short_left == 1
    assert step.share_long([100, 100, 100]) == [1, 1, 1]


def test_no_chunk_is_longer_than_its_limit() -> None:
    step = budget(chunk=5)
    assert step.take_short(9) == 5
    assert budget(chunk=5).share_long([100, 100]) == [5, 5]


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.integers(1, 40),
    chunk=st.integers(1, 40),
    share=st.floats(0.0, 1.0),
    decodes=st.integers(0, 40),
    short=st.lists(st.integers(1, 20), max_size=5),
    old=st.lists(st.integers(1, 200), max_size=4),
    new=st.lists(st.integers(1, 200), max_size=4),
)
def test_whatever_comes_the_budget_holds_and_the_laws_with_it(
    tokens: int, chunk: int, share: float, decodes: int, short: list[int], old: list[int], new: list[int]
) -> None:
    decodes = min(decodes, tokens)
    step = budget(decodes, any_long=bool(old), tokens=tokens, chunk=chunk, share=share)
    given_short = 0
    for left in short:
        got = step.take_short(left)
        assert 0 <= got <= min(left, chunk)
        given_short += got
    joined = 0
    for _ in new:
        if step.short_left > 0:
            step.hold()
            joined += 1
    lefts = [*old, *new[:joined]]
    shares = step.share_long(lefts)
    assert all(0 <= got <= min(left, chunk) for got, left in zip(shares, lefts, strict=True))
    assert decodes + given_short + sum(shares) <= tokens
    assert all(got >= 1 for got in shares[len(old) :]), "whoever joins has a row"
    if decodes or given_short:
        assert sum(shares) <= max(1, int(tokens * share), joined)


def _tokens(plan: StepPlan | None) -> dict[int, int]:
    assert plan is not None
    return {row.sequence: row.query_len for row in plan.sequences}


def test_a_long_prompt_beside_a_chat_moves_by_its_share_and_alone_by_whole_chunks() -> None:
    rig = Rig(pages=64, context=256, budget=32, chunk_tokens=16, long_share=0.25)
    rig.add("chat", prompt=4, out=4)
    assert _tokens(rig.step()) == {0: 4}
    rig.add("long", prompt=100, out=2)
    for _ in range(3):
        assert _tokens(rig.step()) == {0: 1, 1: 8}
    assert _tokens(rig.step()) == {1: 16}
    rig.add("short", prompt=16, out=2)
    assert _tokens(rig.step()) == {1: 8, 2: 16}, "a short prompt has the rest at once"
    assert _tokens(rig.step()) == {1: 8, 2: 1}
    rig.run_out()


def test_of_the_short_ones_the_shortest_goes_first_and_before_new_requests() -> None:
    rig = Rig(pages=64, context=64, budget=16, chunk_tokens=6)
    rig.add("longer", prompt=8, out=2)
    rig.add("shorter", prompt=7, out=2)
    assert _tokens(rig.step()) == {0: 6, 1: 6}
    rig.add("new", prompt=8, out=2)
    plan = rig.step()
    assert plan is not None
    assert [(row.sequence, row.query_len) for row in plan.sequences] == [(1, 1), (0, 2), (2, 6)]
    rig.run_out()

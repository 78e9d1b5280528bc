"""Requests in a minute, against a model that keeps exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry.gateway.limits.rate import RateBucket


def test_so_many_at_once_then_evenly() -> None:
    bucket = RateBucket(6, now=0.0)
    for _ in range(6):
        assert bucket.wait_s(0.0) == 0.0
        bucket.take()
    assert bucket.wait_s(0.0) == pytest.approx(10.0)
    assert bucket.wait_s(4.0) == pytest.approx(6.0)
    assert bucket.wait_s(10.0) == 0.0
    bucket.take()
    assert bucket.wait_s(10.0) == pytest.approx(10.0)
    assert not bucket.full(69.9)
    assert bucket.full(70.0)


def test_it_never_holds_more_than_a_minute() -> None:
    bucket = RateBucket(2, now=0.0)
    bucket.give_back()
    for _ in range(2):
        bucket.take()
    assert bucket.wait_s(0.0) > 0
    assert bucket.wait_s(1e6) == 0.0
    bucket.take()
    bucket.take()
    assert bucket.wait_s(1e6) > 0


@pytest.mark.parametrize(("limit", "left"), [(10, 7), (4, 1), (2, 0)])
def test_what_was_used_stays_used_when_the_limit_changes(limit: int, left: int) -> None:
    bucket = RateBucket(5, now=0.0)
    for _ in range(3):
        bucket.take()
    bucket.change(limit, now=0.0)
    count = 0
    while bucket.wait_s(0.0) == 0.0:
        bucket.take()
        count += 1
    assert count == left


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 40)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.just("give_back"), st.just(0)),
        st.tuples(st.just("change"), st.integers(1, 30)),
    ),
    max_size=60,
)


@given(st.integers(1, 30), ACTIONS)
def test_any_history_is_the_models(limit: int, actions: list[tuple[str, int]]) -> None:
    bucket, now, held = RateBucket(limit, 0.0), 0, Fraction(limit)
    for action, value in actions:
        if action == "wait":
            now += value
            held = min(Fraction(limit), held + Fraction(value * limit, 60))
        elif action == "take":
            wait = bucket.wait_s(float(now))
            assert wait == pytest.approx(float(max(Fraction(0), (1 - held) * 60 / limit)), abs=1e-6)
            if wait == 0.0 and held >= 1:
                bucket.take()
                held -= 1
        elif action == "give_back":
            bucket.give_back()
            held = min(Fraction(limit), held + 1)
        else:
            held = min(Fraction(value), max(Fraction(0), held + value - limit))
            bucket.change(value, float(now))
            limit = value
        assert bucket.wait_s(float(now)) >= 0.0

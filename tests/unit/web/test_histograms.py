"""Quantiles of histograms against the values themselves."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry_admin.web.histograms import Histogram, merged

BOUNDS = (0.1, 0.5, 1.0, 5.0)


def counted(values: list[float]) -> Histogram:
    counts = [0] * (len(BOUNDS) + 1)
    for value in values:
        counts[bisect_left(BOUNDS, value)] += 1
    return Histogram(BOUNDS, tuple(counts))


def test_nothing_has_no_quantiles() -> None:
    assert Histogram().quantile(0.5) is None
    assert counted([]).quantiles().p99 is None
    assert merged([]).total == 0


def test_evenly_spread_within_a_bucket() -> None:
    found = Histogram(BOUNDS, (0, 4, 0, 0, 0))
    assert found.quantile(0.5) == pytest.approx(0.3)
    assert found.quantile(1.0) == pytest.approx(0.5)
    beyond = counted([9.0])
    assert (beyond.quantile(0.5), beyond.quantiles().over) == (5.0, True)


@given(st.lists(st.floats(0.001, 4.9), min_size=1, max_size=60), st.sampled_from([0.5, 0.95, 0.99]))
def test_within_the_bucket_of_the_true_one(values: list[float], part: float) -> None:
    ordered = sorted(values)
    true = ordered[min(len(ordered) - 1, max(0, -(-int(part * len(ordered) * 1000) // 1000) - 1))]
    found = counted(values).quantile(part)
    assert found is not None
    assert abs(bisect_left(BOUNDS, found) - bisect_left(BOUNDS, true)) <= 1


@given(st.lists(st.floats(0.001, 9)), st.lists(st.floats(0.001, 9)))
def test_sums_are_of_both(a: list[float], b: list[float]) -> None:
    assert merged([counted(a), Histogram(), counted(b)]).counts == counted(a + b).counts


def test_other_bounds_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="bounds"):
        merged([Histogram((1.0,), (1, 1)), Histogram((2.0,), (1, 1))])

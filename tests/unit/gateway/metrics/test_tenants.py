"""Tenants with series of their own: bounded, the largest, and no counter ever goes back."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lorry.gateway.metrics.tenants import OTHER, RERANK_S, LargestTenants


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def requests(tenants: LargestTenants) -> dict[str, int]:
    return {tenant: bills.requests for tenant, bills in tenants.shown()}


def test_the_first_ones_have_places_and_the_rest_is_summed_up() -> None:
    tenants = LargestTenants(2, Clock())
    for tenant in ("a", "b", "c", "a", "d"):
        tenants.bill(tenant, 3, 1, 2)
    shown = dict(tenants.shown())
    assert {name: bills.requests for name, bills in shown.items()} == {"a": 2, "b": 1, OTHER: 2}
    assert (shown["a"].prompt, shown["a"].cached, shown["a"].output) == (6, 2, 4)


def test_places_go_to_the_largest_of_the_last_ten_minutes() -> None:
    clock = Clock()
    tenants = LargestTenants(2, clock)
    for tenant, output in (("a", 1), ("b", 1), ("big", 100), ("big", 100)):
        tenants.bill(tenant, 0, 0, output)
    assert requests(tenants) == {"a": 1, "b": 1, OTHER: 2}
    clock.now = RERANK_S
    tenants.bill("big", 0, 0, 100)
    shown = requests(tenants)
    assert shown["big"] == 1, "what was counted under other stays there"
    assert len(shown) == 3
    assert shown[OTHER] == 2


def test_one_that_comes_back_goes_on_where_it_stood() -> None:
    clock = Clock()
    tenants = LargestTenants(1, clock)
    tenants.bill("a", 0, 0, 5)
    for tenant in ("b", "a", "b"):
        for _ in range(3):
            tenants.bill(tenant, 0, 0, 5)
        clock.now += RERANK_S
        tenants.bill(tenant, 0, 0, 5)
    assert requests(tenants) == {"b": 2, OTHER: 9}
    assert tenants._own["a"].requests == 2, "it has no series, and loses nothing"


def test_without_places_all_are_summed_up() -> None:
    tenants = LargestTenants(0, Clock())
    tenants.bill("a", 1, 0, 1)
    assert requests(tenants) == {OTHER: 1}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50), st.sampled_from([0.0, RERANK_S])), max_size=80))
def test_no_series_goes_back_and_nothing_is_lost(bills: list[tuple[int, int, float]]) -> None:
    clock = Clock()
    tenants = LargestTenants(3, clock)
    seen: Counter[str] = Counter()
    for tenant, tokens, pause in bills:
        clock.now += pause
        tenants.bill(f"t{tenant}", tokens, 0, 0)
        shown = requests(tenants)
        assert len(shown) <= 4
        for name, count in shown.items():
            assert count >= seen[name]
            seen[name] = count
    assert sum(one.requests for one in tenants._own.values()) + tenants._other.requests == len(bills)

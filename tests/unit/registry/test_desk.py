"""Requests that a gateway remembers: bounded, each tenant's apart, the latest or the longest first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lorry.registry.fleet.desk import (
    CANCELLED,
    FAILED_KEPT,
    OK,
    SLOW_KEPT,
    SLOW_S,
    TENANTS_KEPT,
    EndedRequest,
    RecentRequests,
)


def ended(name: str, tenant: str, outcome: str, at: float, took: float = 1.0) -> EndedRequest:
    return EndedRequest(name, tenant, tenant, "m", "", "", outcome, "", at - took, at)


def test_failed_the_latest_first_and_each_tenants_apart() -> None:
    recent = RecentRequests(lambda: 1000.0)
    recent.note(ended("quiet", "quiet", "MODEL_NOT_FOUND", 1.0))
    for at in range(5 * FAILED_KEPT):
        recent.note(ended(f"r{at}", "loud", "OVERLOADED", 10.0 + at))
    assert [one.request_id for one in recent.failed("quiet")] == ["quiet"]
    assert [one.request_id for one in recent.failed("loud")] == [f"r{5 * FAILED_KEPT - 1 - at}" for at in range(64)]
    assert len(recent.failed()) == FAILED_KEPT + 1
    assert recent.failed("other") == recent.slow("other") == recent.slow() == []


def test_what_a_client_cancelled_is_slow_and_not_failed() -> None:
    recent = RecentRequests(lambda: 1000.0)
    recent.note(ended("left", "t", CANCELLED, 990.0, 60.0))
    recent.note(ended("done", "t", OK, 991.0, 2.0))
    assert recent.failed() == []
    assert [one.request_id for one in recent.slow("t")] == ["left", "done"]


def test_tenants_are_bounded() -> None:
    recent = RecentRequests(lambda: 1000.0)
    for at in range(TENANTS_KEPT + 5):
        recent.note(ended("r", f"t{at}", "X", 1.0))
    assert len(recent.failed()) == TENANTS_KEPT
    assert recent.failed("t0") == []


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 2 * SLOW_S)), max_size=200))
def test_slow_are_the_longest_of_the_last_hour(rows: list[tuple[float, float]]) -> None:
    """As a list of all would say, as long as requests end in the order in which they are noted."""
    now = [0.0]
    recent, every = RecentRequests(lambda: now[0]), []
    for at, (took, end) in enumerate(sorted(rows, key=lambda row: row[1])):
        now[0] = end
        one = ended(f"r{at}", "t", OK, end, took)
        recent.note(one)
        every.append(one)
        fresh = [row for row in every if row.ended_at > now[0] - SLOW_S]
        found = recent.slow("t")
        assert len(found) <= SLOW_KEPT
        assert set(found) <= set(fresh)
        assert [row.duration_s for row in found] == sorted((row.duration_s for row in found), reverse=True)
        if len(every) <= SLOW_KEPT:
            assert set(found) == set(fresh)
    if every:
        longest = max((row.duration_s for row in every if row.ended_at > now[0] - SLOW_S), default=None)
        assert longest is None or recent.slow("t")[0].duration_s == longest

"""One cost for idle things of every kind."""

from __future__ import annotations

import pytest

from lorry.memory import EvictionClock, RestoreCosts


def test_worth_is_what_a_byte_costs_to_restore() -> None:
    clock = EvictionClock()
    assert clock.worth(2.0, 100) == pytest.approx(0.02)
    assert clock.worth(2.0, 50) > clock.worth(2.0, 100) > clock.worth(1.0, 100)


def test_the_level_rises_to_what_went_so_that_what_was_used_since_is_worth_more() -> None:
    clock = EvictionClock()
    old = clock.worth(1.0, 10)
    clock.evicted(old)
    assert clock.worth(1.0, 10) == pytest.approx(2 * old)
    cheap = clock.worth(0.1, 10)
    assert cheap > old, "cheap but used since is kept before dear and never used again"


def test_the_level_never_falls() -> None:
    clock = EvictionClock()
    clock.evicted(5.0)
    clock.evicted(1.0)
    assert clock.worth(1.0, 1) == pytest.approx(6.0)


def test_a_kv_page_is_worth_more_than_its_bytes_of_adapter() -> None:
    """SmolLM2-135M in float32: a page of 16 tokens takes 16 * 30 * 2 * 3 * 64 * 4 bytes."""
    costs, clock = RestoreCosts(), EvictionClock()
    page = 16 * 30 * 2 * 3 * 64 * 4
    in_pages = clock.worth(16 * costs.prefill_s_per_token, page)
    in_adapter = clock.worth(page * costs.load_s_per_byte, page)
    assert 10 < in_pages / in_adapter < 1000

"""How the budget bounds the two arenas, and which budgets are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry.config import MemoryConfig
from lorry.errors import InvalidRequest
from lorry.memory import least_budget, split_budget

CONFIG = MemoryConfig(
    budget_bytes=100_000,
    adapter_fraction=0.4,
    kv_fraction=0.2,
    extras_fraction=0.1,
    page_tokens=16,
    chunk_rank=8,
    max_slots=32,
    max_rank=64,
)


def test_adapters_stop_at_their_ceiling_and_pages_may_use_all_but_one_largest_adapter() -> None:
    split = split_budget(CONFIG, page_bytes=1000, chunk_bytes=3000, context_tokens=160)
    assert split.chunks == 13, "40000 bytes"
    assert split.pages == 76, "100000 bytes without 8 chunks"
    assert (split.budget_bytes, split.page_bytes, split.chunk_bytes) == (100_000, 1000, 3000)
    assert split.chunks_per_largest == 8


def test_the_largest_adapter_is_as_large_as_the_device_says() -> None:
    split = split_budget(CONFIG, page_bytes=1000, chunk_bytes=1000, context_tokens=160, largest_chunks=21)
    assert (split.chunks_per_largest, split.pages, split.chunks) == (21, 79, 40)
    with pytest.raises(InvalidRequest, match="needs 41 chunks") as refused:
        split_budget(CONFIG, page_bytes=1000, chunk_bytes=1000, context_tokens=160, largest_chunks=41)
    least = least_budget(CONFIG, page_bytes=1000, chunk_bytes=1000, context_tokens=160, largest_chunks=41)
    assert str(least) in refused.value.message
    assert split_budget(replace(CONFIG, budget_bytes=least), 1000, 1000, 160, 41).chunks >= 41


def test_the_floor_of_kv_bounds_adapters_where_it_is_the_tighter() -> None:
    split = split_budget(replace(CONFIG, kv_fraction=0.75), page_bytes=1000, chunk_bytes=3000, context_tokens=160)
    assert split.chunks == 8, "25000 bytes"


def test_the_floor_is_one_longest_sequence_at_least() -> None:
    config = replace(CONFIG, kv_fraction=0.0, adapter_fraction=0.99)
    split = split_budget(config, page_bytes=1000, chunk_bytes=1000, context_tokens=16 * 70)
    assert split.chunks == 30, "70 pages are left to a sequence"


def test_chunks_that_no_slot_could_use_are_not_there() -> None:
    split = split_budget(replace(CONFIG, max_slots=1), page_bytes=1000, chunk_bytes=1000, context_tokens=160)
    assert (split.chunks, split.pages) == (8, 92)


def test_extras_stop_at_their_cap_and_chunks_and_extras_together_at_the_floor_of_kv() -> None:
    split = split_budget(CONFIG, page_bytes=1000, chunk_bytes=3000, context_tokens=160)
    assert (split.extras_bytes, split.adapter_bytes) == (10_000, 80_000)
    none = split_budget(replace(CONFIG, extras_fraction=0.0), page_bytes=1000, chunk_bytes=3000, context_tokens=160)
    assert none.extras_bytes == 0


def test_extras_get_no_more_than_the_floor_and_the_largest_rank_leave() -> None:
    config = replace(CONFIG, kv_fraction=0.6, extras_fraction=0.5)
    split = split_budget(config, page_bytes=1000, chunk_bytes=3000, context_tokens=160)
    assert split.extras_bytes == 16_000, "100000 without 60000 and 8 chunks"
    long = split_budget(config, page_bytes=1000, chunk_bytes=3000, context_tokens=16 * 70)
    assert long.extras_bytes == 6_000, "100000 without 70 pages and 8 chunks"


def test_exactly_the_largest_adapter_and_one_longest_sequence_is_served_and_a_byte_less_refused() -> None:
    config = replace(CONFIG, adapter_fraction=0.5, kv_fraction=0.5)
    split = split_budget(config, page_bytes=5000, chunk_bytes=6250, context_tokens=160)
    assert (split.chunks, split.pages) == (8, 10)
    with pytest.raises(InvalidRequest) as refused:
        split_budget(replace(config, budget_bytes=99_999), page_bytes=5000, chunk_bytes=6250, context_tokens=160)
    assert [v.field for v in refused.value.violations] == ["memory.budget_bytes"]
    for number in ("99999 bytes", "context_tokens = 160", "10 KV pages of 5000", "max_rank = 64", "8 chunks of 6250"):
        assert number in str(refused.value)
    assert "together 100000" in str(refused.value)


@pytest.mark.parametrize("change", [{"page_bytes": 5001}, {"chunk_bytes": 6251}, {"context_tokens": 161}])
def test_a_little_more_than_the_budget_holds_is_refused(change: dict[str, int]) -> None:
    sizes = {"page_bytes": 5000, "chunk_bytes": 6250, "context_tokens": 160} | change
    with pytest.raises(InvalidRequest):
        split_budget(replace(CONFIG, adapter_fraction=0.9, kv_fraction=0.0), **sizes)


def test_a_fraction_under_the_largest_adapter_is_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidRequest) as refused:
        split_budget(CONFIG, page_bytes=1000, chunk_bytes=5001, context_tokens=160)
    assert [v.field for v in refused.value.violations] == ["memory.adapter_fraction"]
    for number in ("0.4", "100000", "40000 bytes", "max_rank = 64", "8 chunks of 5001", "40008"):
        assert number in str(refused.value)


def test_a_floor_that_leaves_too_little_to_the_largest_adapter_is_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidRequest) as refused:
        split_budget(replace(CONFIG, kv_fraction=0.7), page_bytes=1000, chunk_bytes=4000, context_tokens=160)
    assert [v.field for v in refused.value.violations] == ["memory.adapter_fraction"]
    for words in ("40000 bytes", "30000 are left", "8 chunks", "lower kv_fraction"):
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"budget_bytes": 0}, "memory.budget_bytes"),
        ({"page_tokens": 0}, "memory.page_tokens"),
        ({"chunk_rank": -1}, "memory.chunk_rank"),
        ({"max_slots": 0}, "memory.max_slots"),
        ({"max_rank": 0}, "memory.max_rank"),
        ({"adapter_fraction": 0.0}, "memory.adapter_fraction"),
        ({"adapter_fraction": 1.0}, "memory.adapter_fraction"),
        ({"adapter_fraction": float("nan")}, "memory.adapter_fraction"),
        ({"kv_fraction": -0.1}, "memory.kv_fraction"),
        ({"kv_fraction": 1.0}, "memory.kv_fraction"),
        ({"kv_fraction": float("nan")}, "memory.kv_fraction"),
        ({"extras_fraction": -0.1}, "memory.extras_fraction"),
        ({"extras_fraction": 1.0}, "memory.extras_fraction"),
        ({"extras_fraction": float("nan")}, "memory.extras_fraction"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        split_budget(replace(CONFIG, **change), 1000, 1000, 160)
    assert [v.field for v in refused.value.violations] == [field]


@pytest.mark.parametrize("name", ["page_bytes", "chunk_bytes", "context_tokens"])
def test_sizes_out_of_range_are_refused_by_name(name: str) -> None:
    sizes = {"page_bytes": 1000, "chunk_bytes": 1000, "context_tokens": 160} | {name: 0}
    with pytest.raises(InvalidRequest) as refused:
        split_budget(CONFIG, **sizes)
    assert [v.field for v in refused.value.violations] == [name]


@settings(max_examples=300, deadline=None)
@given(
    budget=st.integers(1, 5000),
    ceiling=st.floats(0.01, 0.99),
    floor=st.floats(0.0, 0.99),
    extras=st.floats(0.0, 0.99),
    page=st.integers(1, 90),
    chunk=st.integers(1, 90),
    context=st.integers(1, 60),
    rank=st.integers(1, 32),
    slots=st.integers(1, 6),
)
def test_whatever_is_served_keeps_floor_and_ceiling_and_whatever_is_refused_could_not(
    budget: int,
    ceiling: float,
    floor: float,
    extras: float,
    page: int,
    chunk: int,
    context: int,
    rank: int,
    slots: int,
) -> None:
    config = MemoryConfig(budget, ceiling, floor, extras, 4, 8, slots, rank)
    longest, largest = -(-context // 4) * page, -(-rank // 8) * chunk
    fits = longest + largest <= budget
    allowed = largest <= int(budget * ceiling) and largest <= budget - max(int(budget * floor), longest)
    if not (fits and allowed):
        with pytest.raises(InvalidRequest) as refused:
            split_budget(config, page, chunk, context)
        field = "memory.adapter_fraction" if fits else "memory.budget_bytes"
        assert [v.field for v in refused.value.violations] == [field]
        return
    split = split_budget(config, page, chunk, context)
    adapters = split.chunks * chunk
    assert largest <= adapters <= budget * ceiling
    assert budget - adapters >= budget * floor - 1
    assert budget - adapters >= longest
    assert split.chunks <= slots * split.chunks_per_largest
    assert longest <= split.pages * page <= budget - largest
    assert 0 <= split.extras_bytes <= budget * extras
    assert largest + split.extras_bytes <= split.adapter_bytes, "the largest adapter there can be"
    assert budget - split.adapter_bytes >= max(budget * floor - 1, longest), "beside one longest sequence"
    wanted = min(int(budget * extras), budget - max(int(budget * floor), longest) - largest)
    assert split.extras_bytes == wanted, "and no less than can be had"


@settings(max_examples=200, deadline=None)
@given(
    adapter_fraction=st.floats(0.01, 0.99),
    kv_fraction=st.floats(0.0, 0.99),
    page_bytes=st.integers(1, 5000),
    chunk_bytes=st.integers(1, 5000),
    context=st.integers(1, 2000),
)
def test_the_budget_that_a_refusal_asks_for_is_taken_and_hardly_a_smaller_one(
    adapter_fraction: float, kv_fraction: float, page_bytes: int, chunk_bytes: int, context: int
) -> None:
    config = replace(CONFIG, budget_bytes=1, adapter_fraction=adapter_fraction, kv_fraction=kv_fraction)
    with pytest.raises(InvalidRequest) as refused:
        split_budget(config, page_bytes, chunk_bytes, context)
    found = re.search(r"raise it to (\d+)", str(refused.value))
    assert found is not None
    least = int(found[1])
    assert least == least_budget(config, page_bytes, chunk_bytes, context)
    split_budget(replace(config, budget_bytes=least), page_bytes, chunk_bytes, context)
    rounding = int(1 / (1 - kv_fraction)) + 1  # the floor is a whole number of bytes
    with pytest.raises(InvalidRequest):
        split_budget(replace(config, budget_bytes=least - rounding), page_bytes, chunk_bytes, context)

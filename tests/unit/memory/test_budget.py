"""How the budget is split, and which budgets are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lorry.config import MemoryConfig
from lorry.errors import InvalidRequest
from lorry.memory import split_budget

CONFIG = MemoryConfig(
    budget_bytes=100_000, adapter_fraction=0.4, page_tokens=16, chunk_rank=8, max_slots=32, max_rank=64
)


def test_adapters_get_their_fraction_and_pages_the_rest() -> None:
    split = split_budget(CONFIG, page_bytes=1000, chunk_bytes=3000, context_tokens=160)
    assert (split.chunks, split.pages) == (13, 61)
    assert split.bytes <= CONFIG.budget_bytes
    assert split.chunks * 3000 <= 0.4 * CONFIG.budget_bytes
    assert split.chunks_per_largest == 8


def test_chunks_that_no_slot_could_use_go_to_pages() -> None:
    split = split_budget(replace(CONFIG, max_slots=1), page_bytes=1000, chunk_bytes=1000, context_tokens=160)
    assert (split.chunks, split.pages) == (8, 92)


def test_a_fraction_under_the_largest_adapter_is_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidRequest) as refused:
        split_budget(CONFIG, page_bytes=1000, chunk_bytes=5001, context_tokens=160)
    assert [v.field for v in refused.value.violations] == ["memory.adapter_fraction"]
    for number in ("40000", "max_rank = 64", "8 chunks", "40008"):
        assert number in str(refused.value)


def test_exactly_the_largest_adapter_and_one_longest_sequence_is_served() -> None:
    split = split_budget(CONFIG, page_bytes=6000, chunk_bytes=5000, context_tokens=160)
    assert (split.chunks, split.pages) == (8, 10)
    with pytest.raises(InvalidRequest, match="context_tokens = 161 needs 11 pages = 66000"):
        split_budget(CONFIG, page_bytes=6000, chunk_bytes=5000, context_tokens=161)


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
    ],
)
def test_settings_out_of_range_are_refused_by_name(change: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        split_budget(replace(CONFIG, **change), 1000, 1000, 160)  # type: ignore[arg-type]
    assert [v.field for v in refused.value.violations] == [field]

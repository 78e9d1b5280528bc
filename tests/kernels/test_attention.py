"""Paged attention on the CPU against the obvious loop in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry_kernels.cpu import decode_attention, plan_decode, prefill_attention
from lorry_kernels.reference import paged_attention_reference

PAGE = 8


def pages(count: int, kv_heads: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, kv_heads, PAGE, dim)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def deal(lengths: list[int], page: int, spread: int, seed: int) -> list[list[int]]:
    """Shuffled pages for each row, out of ``spread`` times as many as are needed."""
    needed = [-(-n // page) for n in lengths]
    order = torch.randperm(sum(needed) * spread, generator=torch.Generator().manual_seed(seed)).tolist()
    return [[order.pop() for _ in range(count)] for count in needed]


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 3 * PAGE + 5]), min_size=1, max_size=6),
    group=st.sampled_from([1, 3, 4]),
    kv_heads=st.sampled_from([1, 2, 3]),
    dim=st.sampled_from([16, 64]),
    spread=st.sampled_from([1, 4]),
    window=st.sampled_from([None, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 3, 3 * PAGE, 100]),
    seed=st.integers(0, 99),
)
def test_decode_equals_the_loop(
    lengths: list[int], group: int, kv_heads: int, dim: int, spread: int, window: int | None, seed: int
) -> None:
    tables = deal(lengths, PAGE, spread, seed)
    k, v = pages(sum(map(len, tables)) * spread + 2, kv_heads, dim, seed)
    q = torch.randn(len(lengths), kv_heads * group, dim, generator=torch.Generator().manual_seed(seed + 1))
    got = decode_attention(q, k, v, plan_decode(tables, lengths, PAGE, group, torch.float32, window))
    for row, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        want = paged_attention_reference(q[row : row + 1], k, v, table, length - 1, window)
        torch.testing.assert_close(got[row : row + 1].double(), want, atol=1e-4, rtol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 60),
    window=st.integers(1, 70),
    page=st.sampled_from([1, 3, 8, 16]),
    spread=st.sampled_from([1, 4]),
    seed=st.integers(0, 99),
)
def test_a_windowed_plan_has_the_pages_of_the_window_and_no_other(
    length: int, window: int, page: int, spread: int, seed: int
) -> None:
    [table] = deal([length], page, spread, seed)
    plan = plan_decode([table], [length], page, 1, torch.float32, window)
    seen = {table[position // page] for position in range(max(0, length - window), length)}
    planned = set(range(plan.low, plan.high)) if plan.gather is None else set(plan.gather.tolist())
    read = [sorted(planned)[at] if plan.gather is None else plan.gather.tolist()[at] for at in plan.merge.flatten()]
    assert set(read) == seen
    assert len(read) == len(seen)
    assert plan.pad is None
    visible = plan.mask[plan.merge.flatten(), 0, 0]
    assert int((visible == 0).sum()) == min(length, window)


def test_a_window_that_no_row_has_reached_changes_nothing() -> None:
    tables, lengths = [[4, 1, 0], [2]], [2 * PAGE + 3, 5]
    plain = plan_decode(tables, lengths, PAGE, 2, torch.float32)
    windowed = plan_decode(tables, lengths, PAGE, 2, torch.float32, 2 * PAGE + 3)
    assert torch.equal(plain.mask, windowed.mask)
    assert torch.equal(plain.merge, windowed.merge)
    assert (plain.low, plain.high) == (windowed.low, windowed.high)


@pytest.mark.parametrize("order", [[5, 0, 1], [0, 5, 1]], ids=["range", "gathered"])
def test_what_lies_before_the_window_may_hold_nan(order: list[int]) -> None:
    """In pages of its own; in the page that the window begins in, values are finite as in all that was written."""
    k, v = pages(6, 2, 16)
    q = torch.randn(1, 4, 16)
    want = decode_attention(q, k, v, plan_decode([order], [3 * PAGE], PAGE, 2, torch.float32, PAGE + 2))
    k[order[0]], v[order[0]] = float("nan"), float("nan")
    got = decode_attention(q, k, v, plan_decode([order], [3 * PAGE], PAGE, 2, torch.float32, PAGE + 2))
    assert torch.isfinite(got).all()
    assert torch.equal(got, want)


def test_decode_with_pages_shared_between_rows() -> None:
    k, v = pages(4, 2, 16)
    q = torch.randn(2, 4, 16)
    tables, lengths = [[1, 2], [1, 3]], [PAGE + 2, PAGE + 5]
    got = decode_attention(q, k, v, plan_decode(tables, lengths, PAGE, 2, torch.float32))
    for row in range(2):
        want = paged_attention_reference(q[row : row + 1], k, v, tables[row], lengths[row] - 1)
        torch.testing.assert_close(got[row : row + 1].double(), want, atol=1e-4, rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    prefixes=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 2), st.integers(1, PAGE)), max_size=6),
    kv_heads=st.sampled_from([1, 3]),
    group=st.sampled_from([1, 4]),
    window=st.sampled_from([None, None, 3, PAGE + 3]),
    dense=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_mix_of_shared_prefixes_equals_the_loop(
    prefixes: list[int],
    rows: list[tuple[int, int, int, int]],
    kv_heads: int,
    group: int,
    window: int | None,
    dense: bool,
    seed: int,
) -> None:
    """``rows``: which prefix (2: none), how many of its pages, how many of its own, positions in the last."""
    generator = torch.Generator().manual_seed(seed)
    free = list(range(40)) if dense else torch.randperm(40, generator=generator).tolist()
    k, v = pages(40, kv_heads, 16, seed)
    shared = [[free.pop(0) for _ in range(count)] for count in prefixes]
    tables, lengths = [], []
    for which, head, own, last in [*rows, (0, 4, 1, 2), (0, 1, 0, PAGE)]:
        table = shared[which][:head] if which < len(shared) else []
        table = [*table, *(free.pop(0) for _ in range(own if table else max(own, 1)))]
        tables.append(table)
        lengths.append((len(table) - 1) * PAGE + last)
    q = torch.randn(len(tables), kv_heads * group, 16, generator=generator)
    got = decode_attention(q, k, v, plan_decode(tables, lengths, PAGE, group, torch.float32, window))
    for row, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        want = paged_attention_reference(q[row : row + 1], k, v, table, length - 1, window)
        torch.testing.assert_close(got[row : row + 1].double(), want, atol=1e-4, rtol=1e-4)


def test_a_shared_page_is_read_once_for_all_its_rows() -> None:
    plan = plan_decode([[1, 2], [1, 3], [1, 4]], [PAGE + 2, PAGE + 5, PAGE + 1], PAGE, 2, torch.float32)
    assert [(s.pages.tolist(), s.rows.tolist()) for s in plan.shared] == [([1], [0, 1, 2])]
    assert len(plan.owner) == 3, "and the others each by its own"


def test_pages_of_others_inside_the_range_may_hold_nan() -> None:
    k, v = pages(3, 2, 16)
    k[1], v[1] = float("nan"), float("nan")
    q = torch.randn(2, 4, 16)
    plan = plan_decode([[0], [2]], [3, PAGE], PAGE, 2, torch.float32)
    assert plan.gather is None, "the case is about the range"
    assert torch.isfinite(decode_attention(q, k, v, plan)).all()


def test_far_apart_pages_are_gathered_and_near_ones_are_not() -> None:
    assert plan_decode([[0], [90]], [1, 1], PAGE, 1, torch.float32).gather is not None
    assert plan_decode([[3], [4]], [1, 1], PAGE, 1, torch.float32).gather is None


@pytest.mark.parametrize(("start", "n"), [(0, 1), (0, 17), (5, 1), (5, 3), (16, 17)])
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (2, 3), (3, 4)])
@pytest.mark.parametrize("window", [None, 1, 4, 16, 17, 32, 33, 40])
def test_prefill_equals_the_loop(start: int, n: int, kv_heads: int, group: int, window: int | None) -> None:
    m = start + n
    count = -(-m // PAGE)
    k, v = pages(count, kv_heads, 16)
    q = torch.randn(n, kv_heads * group, 16)
    keys = k.transpose(1, 2).reshape(-1, kv_heads, 16)[:m]
    values = v.transpose(1, 2).reshape(-1, kv_heads, 16)[:m]
    want = paged_attention_reference(q, k, v, list(range(count)), start, window)
    got = prefill_attention(q, keys, values, start, window)
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)
    if window is not None and start >= window:  # keys that no query sees may be left out
        first = start - window + 1
        fewer = prefill_attention(q, keys[first:], values[first:], start - first, window)
        torch.testing.assert_close(fewer, got, atol=1e-5, rtol=0)

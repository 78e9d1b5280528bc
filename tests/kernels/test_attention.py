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


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 3 * PAGE + 5]), min_size=1, max_size=6),
    group=st.sampled_from([1, 3, 4]),
    kv_heads=st.sampled_from([1, 2, 3]),
    dim=st.sampled_from([16, 64]),
    spread=st.sampled_from([1, 4]),
    seed=st.integers(0, 99),
)
def test_decode_equals_the_loop(
    lengths: list[int], group: int, kv_heads: int, dim: int, spread: int, seed: int
) -> None:
    needed = [-(-n // PAGE) for n in lengths]
    k, v = pages(sum(needed) * spread + 2, kv_heads, dim, seed)
    order = torch.randperm(sum(needed) * spread, generator=torch.Generator().manual_seed(seed)).tolist()
    tables, at = [], 0
    for count in needed:
        tables.append(order[at : at + count])
        at += count
    q = torch.randn(len(lengths), kv_heads * group, dim, generator=torch.Generator().manual_seed(seed + 1))
    got = decode_attention(q, k, v, plan_decode(tables, lengths, PAGE, group, torch.float32))
    for row, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        want = paged_attention_reference(q[row : row + 1], k, v, table, length - 1)
        torch.testing.assert_close(got[row : row + 1].double(), want, atol=1e-4, rtol=1e-4)


def test_decode_with_pages_shared_between_rows() -> None:
    k, v = pages(4, 2, 16)
    q = torch.randn(2, 4, 16)
    tables, lengths = [[1, 2], [1, 3]], [PAGE + 2, PAGE + 5]
    got = decode_attention(q, k, v, plan_decode(tables, lengths, PAGE, 2, torch.float32))
    for row in range(2):
        want = paged_attention_reference(q[row : row + 1], k, v, tables[row], lengths[row] - 1)
        torch.testing.assert_close(got[row : row + 1].double(), want, atol=1e-4, rtol=1e-4)


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
def test_prefill_equals_the_loop(start: int, n: int, kv_heads: int, group: int) -> None:
    m = start + n
    count = -(-m // PAGE)
    k, v = pages(count, kv_heads, 16)
    q = torch.randn(n, kv_heads * group, 16)
    keys = k.transpose(1, 2).reshape(-1, kv_heads, 16)[:m]
    values = v.transpose(1, 2).reshape(-1, kv_heads, 16)[:m]
    want = paged_attention_reference(q, k, v, list(range(count)), start)
    torch.testing.assert_close(prefill_attention(q, keys, values, start).double(), want, atol=1e-4, rtol=1e-4)

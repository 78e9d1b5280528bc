"""Rotary embedding against one pair at a time in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry_kernels.cpu import apply_rotary, rotary_tables
from lorry_kernels.reference import rotary_reference


@settings(max_examples=40, deadline=None)
@given(
    positions=st.lists(st.integers(0, 200), min_size=1, max_size=5),
    heads=st.integers(1, 3),
    dim=st.sampled_from([2, 6, 16, 80]),
    scale=st.sampled_from([1.0, 0.5, 1.3]),
    seed=st.integers(0, 99),
)
def test_rotation_equals_the_loop(positions: list[int], heads: int, dim: int, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.rand(dim // 2, generator=generator)
    x = torch.randn(len(positions), heads, dim, generator=generator)
    cos, sin = rotary_tables(frequencies, 201, scale)
    at = torch.tensor(positions)
    got = apply_rotary(x, cos[at].unsqueeze(1), sin[at].unsqueeze(1))
    want = rotary_reference(x, positions, frequencies.tolist(), scale)
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=0)


def test_position_zero_is_the_scale_alone() -> None:
    x = torch.randn(1, 2, 8)
    cos, sin = rotary_tables(torch.rand(4), 1, 1.5)
    assert torch.equal(apply_rotary(x, cos.unsqueeze(1), sin.unsqueeze(1)), x * 1.5)


@pytest.mark.parametrize("shift", [1, 17])
def test_scores_depend_on_the_distance_alone(shift: int) -> None:
    q, k = torch.randn(1, 1, 16), torch.randn(1, 1, 16)
    cos, sin = rotary_tables(torch.rand(8), 64)

    def score(query_at: int, key_at: int) -> torch.Tensor:
        a, b = (apply_rotary(x, cos[None, None, at], sin[None, None, at]) for x, at in ((q, query_at), (k, key_at)))
        return (a * b).sum()

    torch.testing.assert_close(score(20, 5), score(20 + shift, 5 + shift), atol=1e-4, rtol=0)

"""Linear methods: right in each type, with and without a bias, packed or not."""

from __future__ import annotations

import pytest
import torch

from lorry.layers.linear import PackedLinear, PlainLinear, make_linear, packing_available

PACKED = packing_available()


@pytest.mark.parametrize("rows", [1, 5, 17])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-5), (torch.float16, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
@pytest.mark.parametrize("packed", [False, PACKED])
def test_products_equal_float64(rows: int, biased: bool, dtype: torch.dtype, error: float, packed: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 48, generator=generator)
    weight = (torch.randn(33, 48, generator=generator) / 48**0.5).to(dtype)
    bias = torch.randn(33, generator=generator) * 100 if biased else None
    got = make_linear(weight, bias, packed=packed)(x)
    assert got.dtype == torch.float32
    want = x.double() @ weight.double().T
    if bias is not None:
        want += bias.double()
        error = max(error, 2e-5)  # half a unit in the last place of float32 at some hundreds
    torch.testing.assert_close(got.double(), want, atol=error, rtol=0)


def test_bfloat16_is_packed_where_it_can_be() -> None:
    weight = torch.eye(16, dtype=torch.bfloat16)
    assert isinstance(make_linear(weight, packed=False), PlainLinear)
    assert isinstance(make_linear(weight, packed=PACKED), PackedLinear if PACKED else PlainLinear)


def test_a_float16_weight_takes_activations_beyond_float16() -> None:
    weight = torch.full((2, 4), 0.5, dtype=torch.float16)
    out = make_linear(weight, packed=PACKED)(torch.full((1, 4), 1e6))
    assert torch.equal(out, torch.full((1, 2), 2e6))


def test_the_result_may_be_written_into() -> None:
    linear = make_linear(torch.eye(4), torch.ones(4), packed=False)
    x = torch.zeros(2, 4)
    linear(x).add_(5)
    assert torch.equal(linear(x), torch.ones(2, 4))
    assert torch.equal(x, torch.zeros(2, 4))

"""RMSNorm and the SwiGLU gate against float64 loops, and what they promise bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lorry_kernels.ops.rms_norm import OwnWeights, rms_norm
from lorry_kernels.ops.silu_mul import silu_mul
from lorry_kernels.reference import rms_norm_reference, silu_mul_reference
from tests.kernels.pairwise import Case, pairwise

EPS = 1e-5
TOLERANCE = {torch.float16: 1e-3, torch.float32: 1e-5}
"""Relative to the value, or to 1 where it is smaller: one rounding, and sums in float32."""
DTYPES = [torch.float16, torch.float32]


def noise(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def assert_near(found: Tensor, want: Tensor) -> None:
    scale = want.abs().clamp(min=1.0)
    worst = float(((found.double() - want).abs() / scale).max()) if want.numel() else 0.0
    assert worst <= TOLERANCE[found.dtype], worst


def strided(x: Tensor) -> Tensor:
    """The same values as columns of a wider buffer full of NaN."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 24), math.nan, dtype=x.dtype)
    wide[..., 8:-16] = x
    return wide[..., 8:-16]


def own_weights(tokens: int, size: int, seed: int = 3) -> tuple[OwnWeights, dict[int, Tensor]]:
    """Slots 0 and 2 have one, 1 has the base's; NaN lies between them."""
    vectors = torch.full((64 + 2 * (-(-size // 32) * 32) + 32,), math.nan)
    offset = torch.tensor([32, -1, 64 + -(-size // 32) * 32])
    weights = {}
    for slot in (0, 2):
        weights[slot] = noise(size, dtype=torch.float32, seed=seed + slot)
        vectors[offset[slot] : offset[slot] + size] = weights[slot]
    # Slots that are none: -1, and those that the table does not have.
    of_token = [(0, -1, 1, 2, 3, -(2**31), 2**31 - 1)[i % 7] for i in range(tokens)]
    return OwnWeights(vectors, offset, torch.tensor(of_token, dtype=torch.int32)), weights


@pytest.mark.parametrize(
    "case",
    pairwise(
        {
            "size": [1, 48, 576, 1000, 4097, 8192],
            "tokens": [1, 3, 17],
            "dtype": DTYPES,
            "residual": [False, True],
            "own": [False, True],
            "apart": [False, True],
            "float32_weight": [False, True],
        },
        lambda case: case.get("size", 0) < 4097 or case.get("tokens", 0) < 17,
    ),
    ids=lambda case: "-".join(str(value).removeprefix("torch.") for value in case.values()),
)
def test_rms_norm(case: Case) -> None:
    tokens, size, dtype = case["tokens"], case["size"], case["dtype"]
    x, weight = noise(tokens, size, dtype=dtype, scale=3.0), noise(size, dtype=dtype, seed=1)
    residual = noise(tokens, size, dtype=dtype, seed=2) if case["residual"] else None
    own, weights = own_weights(tokens, size) if case["own"] else (None, {})
    slots = own.slot.tolist() if own else [-1] * tokens
    want, held = rms_norm_reference(x, [weights.get(slot, weight) for slot in slots], EPS, residual)
    if case["apart"]:
        x, residual = strided(x), None if residual is None else strided(residual)
    found = rms_norm(x, weight.float() if case["float32_weight"] else weight, EPS, residual=residual, own=own)
    assert_near(found, want)
    if residual is not None:
        assert torch.equal(residual, held)


@pytest.mark.parametrize("dim", [64, 80, 128])
def test_heads_are_normed_one_by_one(dim: int) -> None:
    """q's part of a qkv buffer, in place, with adapters' own weights; k and v stay."""
    tokens, heads = 5, 3
    qkv = noise(tokens, heads * dim + 40, dtype=torch.float16)
    before, q = qkv.clone(), qkv[:, : heads * dim].view(tokens, heads, dim)
    weight, (own, weights) = noise(dim, dtype=torch.float16, seed=1), own_weights(tokens, dim)
    each = [weights.get(slot, weight) for slot in own.slot.tolist() for _ in range(heads)]
    want, _ = rms_norm_reference(q.reshape(-1, dim), each, EPS)
    rms_norm(q, weight, EPS, own=own, out=q)
    assert_near(q.reshape(-1, dim), want)
    assert torch.equal(qkv[:, heads * dim :], before[:, heads * dim :])


def test_a_row_of_zeros_is_zeros() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 48), torch.ones(48), EPS), torch.zeros(2, 48))


# numpy, which the interpreter runs on, says aloud what a GPU does without a word.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_rms_norm_of_a_row_is_its_own(poison: float) -> None:
    """Bit for bit alone, in any order, beside rows that are not finite, and twice."""
    x, weight = noise(6, 70, dtype=torch.float16), noise(70, dtype=torch.float16, seed=1)
    want = rms_norm(x, weight, EPS)
    assert torch.equal(rms_norm(x[2:3], weight, EPS), want[2:3])
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    assert torch.equal(rms_norm(x[order], weight, EPS), want[order])
    x[4, 69] = poison
    found = rms_norm(x, weight, EPS)
    assert torch.equal(found[:4], want[:4])
    assert torch.equal(found[5:], want[5:])


def test_rows_that_lie_beyond_int32() -> None:
    store = torch.empty(2**31 + 64, dtype=torch.float16)
    far = store.as_strided((3, 48), (2**30, 1))
    far.copy_(noise(3, 48, dtype=torch.float16))
    weight = torch.ones(48, dtype=torch.float16)
    want = rms_norm(far.clone(), weight, EPS)
    assert torch.equal(rms_norm(far, weight, EPS), want)
    assert torch.equal(silu_mul(far), silu_mul(far.clone()))
    assert torch.equal(rms_norm(far.clone(), weight, EPS, out=far), want)


@pytest.mark.parametrize(
    "case",
    pairwise({"size": [1, 48, 1000, 1536, 3000], "tokens": [1, 3, 17], "dtype": DTYPES, "apart": [False, True]}),
    ids=lambda case: "-".join(str(value).removeprefix("torch.") for value in case.values()),
)
def test_silu_mul(case: Case) -> None:
    gate_up = noise(case["tokens"], 2 * case["size"], dtype=case["dtype"], scale=4.0)
    want = silu_mul_reference(gate_up)
    out = strided(torch.zeros_like(want, dtype=case["dtype"])) if case["apart"] else None
    found = silu_mul(strided(gate_up) if case["apart"] else gate_up, out=out)
    assert_near(found, want)
    assert out is None or found is out


def test_silu_mul_of_a_row_is_its_own() -> None:
    gate_up = noise(4, 260, dtype=torch.float16)
    want = silu_mul(gate_up)
    assert torch.equal(silu_mul(gate_up[[3, 1]]), want[[3, 1]])
    gate_up[2, 0], gate_up[2, 131] = -65504.0, math.nan
    found = silu_mul(gate_up)
    assert torch.equal(found[[0, 1, 3]], want[[0, 1, 3]])
    assert float(found[2, 0]) == 0.0
    assert found[2].isnan().tolist() == [i == 1 for i in range(130)], "one element's NaN is its own"


def test_no_rows() -> None:
    assert rms_norm(torch.zeros(0, 48), torch.ones(48), EPS).shape == (0, 48)
    assert silu_mul(torch.zeros(0, 48)).shape == (0, 24)


X, W = torch.zeros(2, 48), torch.ones(48)
OWN = OwnWeights(torch.zeros(64), torch.zeros(3, dtype=torch.int64), torch.zeros(2, dtype=torch.int32))


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (lambda: rms_norm(X.double(), W, EPS), TypeError, "x"),
        (lambda: rms_norm(X[0], W, EPS), ValueError, "x"),
        (lambda: rms_norm(torch.zeros(48, 2).T, W, EPS), ValueError, "x"),
        (lambda: rms_norm(torch.zeros(1, 16385), torch.ones(16385), EPS), ValueError, "x"),
        (lambda: rms_norm(X, W[:-1], EPS), ValueError, "weight"),
        (lambda: rms_norm(X, W.half(), EPS), TypeError, "weight"),
        (lambda: rms_norm(X, W, 0.0), ValueError, "eps"),
        (lambda: rms_norm(X, W, EPS, residual=X.half()), TypeError, "residual"),
        (lambda: rms_norm(X, W, EPS, residual=X[:1]), ValueError, "residual"),
        (lambda: rms_norm(X[:, None], W, EPS, residual=X[:, None]), ValueError, "residual"),
        (lambda: rms_norm(X, W, EPS, out=X[:, :-1]), ValueError, "out"),
        (lambda: rms_norm(X, W, EPS, own=replace(OWN, slot=OWN.slot.long())), TypeError, "own.slot"),
        (lambda: rms_norm(X, W, EPS, own=replace(OWN, slot=OWN.slot[:1])), ValueError, "own.slot"),
        (lambda: rms_norm(X, W, EPS, own=replace(OWN, offset=OWN.offset.int())), TypeError, "own.offset"),
        (lambda: rms_norm(X, W, EPS, own=replace(OWN, vectors=OWN.vectors.half())), TypeError, "own.vectors"),
        (lambda: rms_norm(X, W, EPS, own=replace(OWN, vectors=OWN.vectors[1:])), ValueError, "own.vectors"),
        (lambda: silu_mul(X[:, :-1]), ValueError, "gate_up"),
        (lambda: silu_mul(X.long()), TypeError, "gate_up"),
        (lambda: silu_mul(X, out=X), ValueError, "out"),
        (lambda: silu_mul(X, out=X[:, :24].half()), TypeError, "out"),
    ],
)
def test_bad_calls_name_the_argument(call: Callable[[], object], error: type[Exception], argument: str) -> None:
    with pytest.raises(error, match=f"^{argument}: "):
        call()

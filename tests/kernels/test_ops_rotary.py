"""Rotary with what stands beside it in a layer, against float64 loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lorry_kernels.cpu import rotary_tables
from lorry_kernels.ops.rotary import HeadNorms, OwnWeights, Pages, rotary
from lorry_kernels.reference import rms_norm_reference, rotary_reference
from tests.kernels.pairwise import Case, pairwise
from tests.kernels.test_ops_norm import EPS, assert_near, noise, own_weights

POSITIONS = 40
SCALE = 1.25
"""The tables' own, as YaRN has one."""


def tables(dim: int) -> tuple[list[float], Tensor, Tensor]:
    frequencies = [10_000 ** (-i / dim) for i in range(dim // 2)]
    cos, sin = rotary_tables(torch.tensor(frequencies), POSITIONS, SCALE)
    return torch.tensor(frequencies).tolist(), cos[:, : dim // 2], sin[:, dim // 2 :]


def pages_of(v: Tensor, page: int, slot: Tensor, layers: int = 2) -> tuple[Pages, Tensor]:
    """Views of one arena ``[P, layers, 2, KVH, page, D]`` full of NaN, and the arena, which has a page more
    before them and one behind."""
    arena = torch.full((5, layers, 2, v.shape[1], page, v.shape[2]), math.nan, dtype=v.dtype)
    return Pages(v, arena[1:4, 1, 0], arena[1:4, 1, 1], slot), arena


@pytest.mark.parametrize(
    "case",
    pairwise(
        {
            "heads": [(1, 1), (9, 3), (16, 1), (4, 4)],
            "dim": [2, 64, 80, 96, 128, 192, 256],
            "tokens": [1, 5],
            "dtype": [torch.float16, torch.float32],
            "norm": [False, True, "own"],
            "page": [0, 1, 16],
        }
    ),
    ids=lambda case: "-".join(str(value).removeprefix("torch.").replace(" ", "") for value in case.values()),
)
def test_q_k_and_v(case: Case) -> None:
    (heads, kv_heads), dim, tokens, page = case["heads"], case["dim"], case["tokens"], case["page"]
    qkv = noise(tokens, (heads + 2 * kv_heads) * dim, dtype=case["dtype"])
    before = qkv.clone()
    every = qkv.view(tokens, -1, dim)
    q, k, v = every[:, :heads], every[:, heads : heads + kv_heads], every[:, heads + kv_heads :]
    position = torch.tensor([(7 * i + 3) % POSITIONS for i in range(tokens)])
    frequencies, cos, sin = tables(dim)
    norms, each = _norms(case["norm"], tokens, dim, case["dtype"])

    def want(x: Tensor, which: int) -> Tensor:
        if each is not None:
            weights = [weight for weight in each[which] for _ in range(x.shape[1])]
            x = rms_norm_reference(x.reshape(-1, dim), weights, EPS)[0].view(x.shape)
        return rotary_reference(x.double(), position.tolist(), frequencies, SCALE)

    want_q, want_k = want(q, 0), want(k, 1)
    slot = torch.tensor([(1, -1, 2 * page, 3 * page, 3 * page - 1 if page > 1 else 0)[i] for i in range(tokens)])
    pages, arena = pages_of(v, max(page, 1), slot)
    rotary(q, k, position, cos, sin, norms=norms, pages=pages if page else None)
    assert_near(q, want_q)
    assert torch.equal(v, before.view(tokens, -1, dim)[:, heads + kv_heads :])
    if not page:
        assert_near(k, want_k)
        return
    assert torch.equal(k, before.view(tokens, -1, dim)[:, heads : heads + kv_heads])
    for token, place in enumerate(slot.tolist()):
        if 0 <= place < 3 * page:
            assert_near(pages.k_pages[place // page, :, place % page], want_k[token])
            assert torch.equal(pages.v_pages[place // page, :, place % page], v[token])
            arena[1 + place // page, 1, :, :, place % page] = math.nan
    assert arena.isnan().all(), "nothing else is written"


def _norms(
    kind: bool | str, tokens: int, dim: int, dtype: torch.dtype
) -> tuple[HeadNorms | None, tuple[list[Tensor], list[Tensor]] | None]:
    if not kind:
        return None, None
    q_weight, k_weight = noise(dim, dtype=dtype, seed=5), noise(dim, dtype=dtype, seed=6)
    if kind != "own":
        return HeadNorms(q_weight, k_weight, EPS), ([q_weight] * tokens, [k_weight] * tokens)
    own, weights = own_weights(tokens, dim)
    swapped = OwnWeights(own.vectors, own.offset.flip(0), own.slot)
    slots = own.slot.tolist()
    each_q = [weights.get(slot, q_weight) for slot in slots]
    each_k = [weights.get(2 - slot, k_weight) for slot in slots]
    return HeadNorms(q_weight, k_weight, EPS, own, swapped), (each_q, each_k)


def test_a_token_is_its_own_bit_for_bit() -> None:
    q, k = noise(4, 3, 64, dtype=torch.float16), noise(4, 1, 64, dtype=torch.float16, seed=1)
    position = torch.tensor([0, 9, 3, 9])
    _, cos, sin = tables(64)
    norms, _ = _norms(True, 4, 64, torch.float16)

    def turned(rows: list[int], q: Tensor = q) -> tuple[Tensor, Tensor]:
        some_q, some_k = q[rows], k[rows]
        rotary(some_q, some_k, position[rows], cos, sin, norms=norms)
        return some_q, some_k

    want_q, want_k = turned([0, 1, 2, 3])
    for rows in ([2], [3, 0, 1]):
        some_q, some_k = turned(rows)
        assert torch.equal(some_q, want_q[rows])
        assert torch.equal(some_k, want_k[rows])
    poisoned = q.clone()
    poisoned[1] = math.nan
    assert torch.equal(turned([0, 1, 2, 3], poisoned)[0][[0, 2, 3]], want_q[[0, 2, 3]])


def test_a_position_beyond_the_tables_reads_nothing_of_others() -> None:
    q, k = torch.ones(3, 1, 64), torch.ones(3, 1, 64)
    _, cos, sin = tables(64)
    rotary(q, k, torch.tensor([POSITIONS, -1, 2**40]), cos, sin)
    assert not q.any()
    assert not k.any()


def test_pages_that_lie_beyond_int32() -> None:
    store = torch.empty(2 * 2**30 + 4096, dtype=torch.float16)
    k_pages = store.as_strided((3, 1, 16, 64), (2**30, 1024, 64, 1))
    v_pages = store[2048:].as_strided((3, 1, 16, 64), (2**30, 1024, 64, 1))
    q, k, v = (noise(1, 1, 64, dtype=torch.float16, seed=seed) for seed in range(3))
    near = pages_of(v, 16, torch.tensor([2 * 16 + 5]))[0]
    _, cos, sin = tables(64)
    position = torch.tensor([4])
    rotary(q.clone(), k, position, cos, sin, pages=near)
    rotary(q.clone(), k, position, cos, sin, pages=replace(near, k_pages=k_pages, v_pages=v_pages))
    assert torch.equal(k_pages[2, :, 5], near.k_pages[2, :, 5])
    assert torch.equal(v_pages[2, :, 5], v[0])


def test_no_tokens() -> None:
    _, cos, sin = tables(64)
    rotary(torch.zeros(0, 2, 64), torch.zeros(0, 1, 64), torch.zeros(0, dtype=torch.int64), cos, sin)


Q, K = torch.zeros(2, 3, 64), torch.zeros(2, 1, 64)
P = torch.zeros(2, dtype=torch.int64)
_, COS, SIN = tables(64)
OWN = own_weights(2, 64)[0]
NORMS = HeadNorms(torch.ones(64), torch.ones(64), EPS, OWN, OWN)
PAGES = pages_of(K, 16, P)[0]


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (lambda: rotary(Q.double(), K, P, COS, SIN), TypeError, "q"),
        (lambda: rotary(Q[..., :63], K, P, COS, SIN), ValueError, "q"),
        (lambda: rotary(Q.transpose(1, 2), K, P, COS, SIN), ValueError, "q"),
        (lambda: rotary(Q, K.half(), P, COS, SIN), TypeError, "k"),
        (lambda: rotary(Q, K[:1], P, COS, SIN), ValueError, "k"),
        (lambda: rotary(Q, K, P.int(), COS, SIN), TypeError, "position"),
        (lambda: rotary(Q, K, P, COS.half(), SIN), TypeError, "cos"),
        (lambda: rotary(Q, K, P, COS[:, :16], SIN), ValueError, "cos"),
        (lambda: rotary(Q, K, P, COS, SIN[:-1]), ValueError, "sin"),
        (lambda: rotary(Q, K, P, COS, SIN.contiguous()), ValueError, "sin"),
        (
            lambda: rotary(Q, K, P, COS, SIN, norms=replace(NORMS, q_weight=torch.ones(63))),
            ValueError,
            "norms.q_weight",
        ),
        (lambda: rotary(Q, K, P, COS, SIN, norms=replace(NORMS, eps=0.0)), ValueError, "norms.eps"),
        (lambda: rotary(Q, K, P, COS, SIN, norms=replace(NORMS, k_own=None)), ValueError, "norms.k_own"),
        (
            lambda: rotary(Q, K, P, COS, SIN, norms=replace(NORMS, k_own=replace(OWN, slot=OWN.slot.clone()))),
            ValueError,
            "norms.k_own",
        ),
        (
            lambda: rotary(Q, K, P, COS, SIN, norms=replace(NORMS, k_own=replace(OWN, offset=OWN.offset[:2]))),
            ValueError,
            "norms.k_own.offset",
        ),
        (lambda: rotary(Q, K, P, COS, SIN, pages=replace(PAGES, v=Q)), ValueError, "pages.v"),
        (lambda: rotary(Q, K, P, COS, SIN, pages=replace(PAGES, slot=P.int())), TypeError, "pages.slot"),
        (lambda: rotary(Q, K, P, COS, SIN, pages=replace(PAGES, k_pages=Q)), ValueError, "pages.k_pages"),
        (
            lambda: rotary(Q, K, P, COS, SIN, pages=replace(PAGES, v_pages=PAGES.v_pages.contiguous())),
            ValueError,
            "pages.v_pages",
        ),
    ],
)
def test_bad_calls_name_the_argument(call: Callable[[], object], error: type[Exception], argument: str) -> None:
    with pytest.raises(error, match=f"^{argument}: "):
        call()

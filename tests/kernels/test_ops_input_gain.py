"""Input gains and the products that stand in for others, against the loops, over a pairwise covering array."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lorry_kernels.ops.input_gain import input_gain, take_gained
from lorry_kernels.reference import input_gain_reference, take_gained_reference
from tests.kernels.pairwise import Case
from tests.kernels.test_ops_embedding import Placed, placed, randn, routing_of
from tests.kernels.test_ops_embedding_pairs import CASES, OWNERS, SLOTS, name, rows_of, same, slots_of

TOLERANCE = {torch.float16: 1e-3, torch.float32: 2e-7}
"""Of the value: float32 inside, one rounding."""


def gains(features: int) -> tuple[Placed, Tensor]:
    """And the offsets: a column of a table, as a slice of a site has it."""
    put = placed([randn(features, seed=slot) for slot in OWNERS], torch.float32)
    offset = torch.full((SLOTS, 2), -1)
    offset[list(OWNERS), 1] = torch.tensor(put.at)
    return put, offset[:, 1]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_input_gain(case: Case) -> None:
    tokens, dtype = case["tokens"], case["dtype"]
    slots, (put, offset) = slots_of(case["mix"], tokens), gains(case["hidden"])
    x = rows_of(case, randn(tokens, case["hidden"], seed=9, dtype=dtype))
    out = rows_of(case, torch.full_like(x, float("nan")))
    input_gain(x, out, put.arena, offset, routing_of(case["phase"], slots, SLOTS))
    want = input_gain_reference(x, slots, put.arena, offset.tolist())
    torch.testing.assert_close(out.double(), want, rtol=TOLERANCE[dtype], atol=6e-8)
    plain = [token for token, slot in enumerate(slots) if slot not in OWNERS]
    assert torch.equal(out[plain], x[plain])


@pytest.mark.parametrize("case", CASES, ids=name)
def test_take_gained(case: Case) -> None:
    tokens = case["tokens"]
    slots, (_, offset) = slots_of(case["mix"], tokens), gains(case["hidden"])
    y, gained = (rows_of(case, randn(tokens, case["hidden"], seed=seed, dtype=case["dtype"])) for seed in (8, 9))
    want = take_gained_reference(y, gained, slots, offset.tolist())
    take_gained(y, gained, offset, routing_of(case["phase"], slots, SLOTS))
    same(y, want)


def test_a_slot_that_the_tables_lack_has_no_gain() -> None:
    put, longer = gains(40)
    offset = longer[:2]
    routing = replace(routing_of("decode", [0, 1, -1], 2), slot=torch.tensor([0, 2, -1], dtype=torch.int32))
    x, out, gained = randn(3, 40), torch.zeros(3, 40), randn(3, 40, seed=1)
    input_gain(x, out, put.arena, offset, routing)
    assert torch.equal(out, x)
    take_gained(out, gained, offset, routing)
    assert torch.equal(out, x)

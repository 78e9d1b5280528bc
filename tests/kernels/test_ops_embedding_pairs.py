"""Embeddings of mixed adapters against the loops, over a pairwise covering array; a slot out of range is the base's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from lorry_kernels.ops.embedding import OwnMatrices, OwnRows, embed, embedding_planes, replace_rows
from lorry_kernels.ops.routing import Routing
from lorry_kernels.reference import embed_reference, embedding_planes_reference, replace_rows_reference
from tests.kernels.pairwise import Case, pairwise
from tests.kernels.test_ops_embedding import placed, randn, routing_of

V, SLOTS = 37, 5
"""Slots 0 and 3 have nothing of their own; a slot's vocabulary is the base's and as many ids as its number."""
OWNERS = (1, 2, 4)
MIXES = ("base", "one each", "shared", "interleaved", "skewed")
UNTOUCHED = 7.0

CASES = pairwise(
    {
        "hidden": (40, 1024, 1500),
        "tokens": (0, 1, 17, 33),
        "mix": MIXES,
        "dtype": (torch.float16, torch.float32),
        "phase": ("decode", "prefill"),
        "sliced": (False, True),
    }
)


def name(case: Case) -> str:
    return "-".join(str(value).removeprefix("torch.").replace(" ", "") for value in case.values())


def slots_of(mix: str, tokens: int) -> list[int]:
    """One a token, of SLOTS."""
    if mix == "base":
        return [-1] * tokens
    if mix == "one each":
        return [(token * 2 + 1) % SLOTS for token in range(tokens)]
    if mix == "shared":
        return [2] * tokens
    if mix == "interleaved":
        return [(token * 7) % (SLOTS + 1) - 1 for token in range(tokens)]
    return ([0, 1, 2] + [4] * tokens)[:tokens]


@dataclass(frozen=True)
class Batch:
    slots: list[int]
    ids: list[int]
    routing: Routing
    limit: Tensor

    @classmethod
    def of(cls, case: Case) -> Batch:
        """Ids are of every vocabulary, and one above and one below."""
        tokens = case["tokens"]
        slots = slots_of(case["mix"], tokens)
        ids = [(token * 5 + 3) % (V + SLOTS + 2) - 1 for token in range(tokens)]
        return cls(slots, ids, routing_of(case["phase"], slots, SLOTS), torch.arange(SLOTS) + V)


def rows_of(case: Case, values: Tensor) -> Tensor:
    """The same, where the case says so as columns of a larger buffer."""
    if not case["sliced"]:
        return values.clone()
    tokens, width = values.shape
    return torch.full((tokens, width + 24), UNTOUCHED, dtype=values.dtype)[:, 8 : 8 + width].copy_(values)


def same(got: Tensor, want: Tensor) -> None:
    """Bit for bit where not NaN: all of it is copied, or rounded once."""
    torch.testing.assert_close(got, want.to(got.dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_embed(case: Case) -> None:
    batch, dtype, hidden = Batch.of(case), case["dtype"], case["hidden"]
    weight = randn(V, hidden, dtype=dtype)
    put = placed([randn(V + slot, hidden, seed=slot, dtype=dtype) for slot in OWNERS], dtype)
    offset = torch.full((SLOTS,), -1)
    offset[list(OWNERS)] = torch.tensor(put.at)
    out = rows_of(case, torch.full((case["tokens"], hidden), UNTOUCHED, dtype=dtype))
    ids = torch.tensor(batch.ids, dtype=torch.int64)
    embed(ids, weight, out, batch.routing, OwnMatrices(put.arena, offset, batch.limit))
    same(out, embed_reference(batch.ids, weight, batch.slots, put.arena, offset.tolist(), batch.limit.tolist()))
    embed(ids, weight, out, batch.routing)
    same(out, embed_reference(batch.ids, weight, batch.slots))


@pytest.mark.parametrize("case", CASES, ids=name)
def test_embedding_planes(case: Case) -> None:
    """Of ranks to 48; the width of the embedding is B's affair."""
    batch, dtype, blocks = Batch.of(case), case["dtype"], 3
    owned = [(slot, block) for slot in OWNERS for block in range((slot + 1) // 2 + slot // 4)]  # 1, 1 and 3 chunks
    put = placed([randn(V + slot, 16, seed=8 * slot + block) for slot, block in owned], dtype)
    a_offset = torch.full((SLOTS, 1, blocks), -1)
    for (slot, block), at in zip(owned, put.at, strict=True):
        a_offset[slot, 0, block] = at
    planes = torch.full((1, 1, case["tokens"], blocks * 16), UNTOUCHED)
    before = planes[0, 0].clone()
    embedding_planes(
        torch.tensor(batch.ids, dtype=torch.int64), put.arena, a_offset, batch.limit, batch.routing, planes
    )
    order = batch.routing.order.tolist()
    same(
        planes[0, 0],
        embedding_planes_reference(before, order, batch.ids, batch.slots, put.arena, a_offset, batch.limit.tolist()),
    )


@pytest.mark.parametrize("case", CASES, ids=name)
def test_replace_rows(case: Case) -> None:
    batch, hidden = Batch.of(case), case["hidden"]
    put = placed([randn(slot, hidden, seed=slot) for slot in OWNERS], torch.float32)
    size = V + SLOTS + 2
    row_of = torch.zeros(3 + len(OWNERS) * size, dtype=torch.int32)  # who reads beyond a map finds a row
    row_of_at, rows_at = torch.full((SLOTS,), -1), torch.full((SLOTS,), -1)
    for index, slot in enumerate(OWNERS):
        begin = 3 + index * size
        row_of_at[slot], rows_at[slot] = begin, put.at[index]
        row_of[begin : begin + V + slot] = (torch.arange(V + slot) * 3) % (slot + 2) - 1
        row_of[begin : begin + V + slot].clamp_(max=slot - 1)
    y = rows_of(case, randn(case["tokens"], hidden, seed=9, dtype=case["dtype"]))
    want = replace_rows_reference(
        y,
        batch.ids,
        batch.slots,
        row_of.tolist(),
        row_of_at.tolist(),
        batch.limit.tolist(),
        put.arena,
        rows_at.tolist(),
    )
    own = OwnRows(row_of, row_of_at, batch.limit, put.arena, rows_at)
    replace_rows(y, torch.tensor(batch.ids, dtype=torch.int64), batch.routing, own)
    same(y, want)


def test_a_slot_that_the_tables_lack_is_the_bases() -> None:
    """What lies behind the tables would be another's matrix and rows."""
    weight, other = randn(V, 40), randn(V, 40, seed=1)
    put = placed([other], torch.float32)
    longer = torch.tensor([-1, -1, put.at[0]]), torch.tensor([0, 0, V])
    routing = replace(routing_of("decode", [0, 1, -1], 2), slot=torch.tensor([0, 2, -1], dtype=torch.int32))
    ids, out = torch.tensor([4, 4, 5]), torch.zeros(3, 40)
    embed(ids, weight, out, routing, OwnMatrices(put.arena, longer[0][:2], longer[1][:2]))
    same(out, embed_reference(ids.tolist(), weight, routing.slot.tolist(), put.arena, [-1, -1], [0, 0]))
    assert torch.equal(out, weight[ids])
    row_of_at = torch.tensor([-1, -1, 0])
    own = OwnRows(torch.arange(V, dtype=torch.int32), row_of_at[:2], longer[1][:2], put.arena, longer[0][:2])
    replace_rows(out, ids, routing, own)
    assert torch.equal(out, weight[ids])

"""Embeddings of mixed adapters, and input gains, against loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from lorry_kernels.ops.embedding import OwnMatrices, OwnRows, embed, embedding_planes, replace_rows
from lorry_kernels.ops.expand import ExpandPlan, SiteVectors, expand
from lorry_kernels.ops.input_gain import input_gain, take_gained
from lorry_kernels.ops.routing import Routing, checked_slots, route
from lorry_kernels.tuning.rows import Phase

CPU = torch.device("cpu")
V, H = 50, 40
PHASES: tuple[Phase, ...] = ("decode", "prefill")


def routing_of(phase: Phase, slots: list[int], count: int) -> Routing:
    made = Routing.allocate(phase, len(slots), count, CPU)
    route(checked_slots(slots, count), torch.zeros(len(slots), dtype=torch.int64), torch.zeros(count).long(), made)
    return made


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass(frozen=True)
class Placed:
    arena: Tensor
    at: list[int]


def placed(pieces: list[Tensor], dtype: torch.dtype) -> Placed:
    """Pieces at multiples of 128 bytes, NaN between them."""
    step = 128 // dtype.itemsize
    at, end = [], step
    for piece in pieces:
        at.append(end)
        end += (-(-piece.numel() // step) + 1) * step
    arena = torch.full((end,), float("nan"), dtype=dtype)
    for begin, piece in zip(at, pieces, strict=True):
        arena[begin : begin + piece.numel()] = piece.flatten().to(dtype)
    return Placed(arena, at)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_own_matrices(dtype: torch.dtype) -> None:
    weight, larger = randn(V, H, dtype=dtype), randn(V + 6, H, seed=1, dtype=dtype)
    put = placed([larger], dtype)
    own = OwnMatrices(put.arena, torch.tensor([-1, put.at[0]]), torch.tensor([0, V + 6]))
    slots, ids = [-1, 0, 1, 1, -1, 1, 0], torch.tensor([3, V - 1, 3, V + 5, 0, 0, 7])
    out = torch.full((len(slots), H + 8), float("nan"), dtype=dtype)[:, :H]
    embed(ids, weight, out, routing_of("decode", slots, 2), own)
    for token, slot in enumerate(slots):
        assert torch.equal(out[token], (larger if slot == 1 else weight)[ids[token]]), token
    embed(ids.clamp(max=V - 1), weight, out, routing_of("decode", slots, 2))
    assert torch.equal(out, weight[ids.clamp(max=V - 1)])


def test_an_id_without_a_row_is_nan_and_no_other_row() -> None:
    weight, larger = randn(V, H), randn(V + 6, H, seed=1)
    put = placed([larger], torch.float32)
    own = OwnMatrices(put.arena, torch.tensor([-1, put.at[0]]), torch.tensor([0, V + 6]))
    slots, ids = [-1, 0, 1, 1, -1], torch.tensor([V, -1, V + 6, V, 4])
    out = torch.empty(5, H)
    embed(ids, weight, out, routing_of("decode", slots, 2), own)
    assert out.isnan().all(1).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("phase", PHASES)
def test_lora_by_id_with_a_gain(phase: Phase) -> None:
    """``gain * (E[t] + scale * B A[:, t])`` of ranks 20, none and 3; an id beyond A is NaN."""
    ranks, blocks, dtype = (20, 0, 3), 2, torch.float32
    tables = [randn(V, rank, seed=rank) for rank in ranks]
    b = [randn(H, rank, seed=rank + 1) for rank in ranks]
    pieces: list[Tensor] = []
    a_index, b_index = torch.full((3, 1, blocks), -1), torch.full((3, 1, blocks), -1)
    for slot, rank in enumerate(ranks):
        for block in range(-(-rank // 16)):
            for source, index in ((tables[slot], a_index), (b[slot], b_index)):
                chunk = torch.zeros(source.shape[0], 16)
                part = source[:, block * 16 : block * 16 + 16]
                chunk[:, : part.shape[1]] = part
                index[slot, 0, block] = len(pieces)
                pieces.append(chunk)
    put = placed(pieces, dtype)
    at = torch.tensor([*put.at, -1])
    a_offset, b_offset = at[a_index], at[b_index]
    gains = placed([randn(H, seed=9)], torch.float32)
    vectors = SiteVectors(
        gains.arena, torch.tensor([[-1], [-1], [gains.at[0]]]), torch.full((3, 1), -1, dtype=torch.int64)
    )
    scale = torch.tensor([[0.5], [1.0], [2.0]])
    slots = [2, -1, 0, 1, 0, 2, 0]
    ids = torch.tensor([4, 4, V - 1, 0, 4, 0, V])
    routing = routing_of(phase, slots, 3)
    planes = torch.full((1, 1, len(slots), blocks * 16), float("nan"))
    y = randn(len(slots), H, seed=5)
    want = y.clone()
    for token, slot in enumerate(slots[:-1]):
        if slot >= 0:
            want[token] += float(scale[slot, 0]) * (b[slot] @ tables[slot][ids[token]])
        if slot == 2:
            want[token] *= randn(H, seed=9)
    embedding_planes(ids, put.arena, a_offset, torch.full((3,), V), routing, planes)
    expand(
        y,
        planes,
        put.arena,
        b_offset,
        scale,
        routing,
        ExpandPlan.of(phase, "interpreter", (H,), blocks, 1, dtype, CPU),
        vectors,
    )
    assert y[-1].isnan().all()
    torch.testing.assert_close(y[:-1], want[:-1], atol=1e-4, rtol=1e-4)
    assert torch.equal(y[1], want[1])


def test_rows_that_stand_for_ids() -> None:
    rows, size = randn(3, H), V + 4
    row_of = torch.full((7 + size,), 2**30, dtype=torch.int32)  # what no slot owns leads nowhere
    row_of[7:] = -1
    row_of[7 + 5], row_of[7 + V + 3], row_of[7] = 0, 2, 1
    put = placed([rows], torch.float32)
    own = OwnRows(row_of, torch.tensor([-1, 7]), torch.tensor([0, size]), put.arena, torch.tensor([-1, put.at[0]]))
    slots, ids = [1, 1, 0, -1, 1, 1, 1], torch.tensor([5, V + 3, 5, 5, 6, size, 0])
    y = randn(7, H, seed=2, dtype=torch.float16)
    before = y.clone()
    replace_rows(y, ids, routing_of("decode", slots, 2), own)
    for token, row in enumerate((0, 2, None, None, None, None, 1)):
        assert torch.equal(y[token], before[token] if row is None else rows[row].half()), token


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_input_gains(dtype: torch.dtype) -> None:
    k = 1500
    put = placed([randn(k, seed=3)], torch.float32)
    slots = [0, 1, -1, 1]
    x = randn(4, k + 20, dtype=dtype)[:, :k]
    out = torch.full((4, k), float("nan"), dtype=dtype)
    routing = routing_of("decode", slots, 2)
    offset = torch.tensor([[-1, 0], [put.at[0], 0]])[:, 0]
    input_gain(x, out, put.arena, offset, routing)
    assert torch.equal(out[[0, 2]], x[[0, 2]])
    assert torch.equal(out[1], (x[1].float() * randn(k, seed=3)).to(dtype))
    with pytest.raises(ValueError, match=r"^out: is x itself"):
        input_gain(x, x, put.arena, offset, routing)
    for name, call in {
        "x": (x.double(), out, put.arena, offset),
        "out": (x, out[:, 1:], put.arena, offset),
        "vectors": (x, out, put.arena.half(), offset),
        "offset": (x, out, put.arena, offset[:1]),
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
            input_gain(*call, routing)
    with pytest.raises(ValueError, match=r"^vectors: begins at an address that is 4 beyond"):
        input_gain(x, out, put.arena[1:], offset, routing)


def test_rows_with_a_gain_take_the_other_product() -> None:
    """In a slice's columns of a site's y: others, and other rows, are not touched."""
    n = 1100
    slots = [1, 0, -1, 1, 0]
    routing = routing_of("decode", slots, 2)
    y, gained = randn(5, n + 40), randn(5, n, seed=1)
    before = y.clone()
    offset = torch.tensor([[0, -1], [0, 64]])[:, 1]
    take_gained(y[:, 16 : 16 + n], gained, offset, routing)
    want = before.clone()
    want[[0, 3], 16 : 16 + n] = gained[[0, 3]]
    assert torch.equal(y, want)
    columns = y[:, 16 : 16 + n]
    for name, call in {
        "y": (columns.double(), gained, offset),
        "gained": (columns, gained.half(), offset),
        "offset": (columns, gained, offset[:1]),
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
            take_gained(*call, routing)


def test_bad_calls() -> None:
    routing = routing_of("decode", [0, -1], 1)
    ids, weight, out = torch.tensor([1, 2]), randn(V, H), torch.zeros(2, H)
    table = torch.tensor([-1])
    for name, call in {
        "ids": (ids.int(), weight, out),
        "weight": (ids, weight.T, out),
        "out": (ids, weight, out.half()),
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
            embed(*call, routing)
    with pytest.raises(TypeError, match=r"^arena: is float16"):
        embed(ids, weight, out, routing, OwnMatrices(weight.half().flatten(), table, table))
    with pytest.raises(ValueError, match=r"^limit: "):
        embed(ids, weight, out, routing, OwnMatrices(weight.flatten(), table, table[:0]))
    planes = torch.zeros(1, 1, 2, 16)
    with pytest.raises(ValueError, match=r"^a_offset: "):
        embedding_planes(ids, weight.flatten(), table, table, routing, planes)
    with pytest.raises(ValueError, match=r"^planes: "):
        embedding_planes(ids, weight.flatten(), table.view(1, 1, 1), table, routing, planes[..., :8])
    own = OwnRows(torch.zeros(4, dtype=torch.int64), table, table, torch.zeros(4), table)
    with pytest.raises(TypeError, match=r"^row_of: is int64"):
        replace_rows(out, ids, routing, own)
    with pytest.raises(ValueError, match=r"^vectors: begins at an address that is 4 beyond"):
        replace_rows(out, ids, routing, replace(own, row_of=own.row_of.int(), vectors=torch.zeros(5)[1:]))
    assert not out.any()

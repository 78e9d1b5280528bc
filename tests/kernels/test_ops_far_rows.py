"""Embeddings and input gains reach what lies beyond 2^31 elements. A kernel that wrapped around would find zeros."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lorry_kernels.ops.embedding import OwnMatrices, OwnRows, embed, embedding_planes, replace_rows
from lorry_kernels.ops.input_gain import input_gain, take_gained
from lorry_kernels.ops.routing import Routing
from tests.kernels.sparse import far_apart, sparse
from tests.kernels.test_ops_embedding import placed, randn, routing_of

H = 64
FAR = 2**32
"""Elements; an int32 of it is 0."""


def half(seed: int) -> Tensor:
    return randn(3, H, seed=seed, dtype=torch.float16)


def test_rows_of_the_base_and_of_a_matrix_of_ones_own(tmp_path: Path) -> None:
    rows, first = half(0), FAR // H + 1
    held = sparse(tmp_path / "weight", FAR + 8 * H)
    weight = held.view(-1, H)
    weight[first : first + 3] = rows
    own = OwnMatrices(held, torch.tensor([FAR + H]), torch.tensor([3]))  # the same rows, for slot 0
    out = far_apart(tmp_path / "out", torch.zeros(3, H, dtype=torch.float16))
    embed(torch.tensor([2, first + 1, 0]), weight, out, routing_of("decode", [0, -1, 0], 1), own)
    assert torch.equal(out, rows[[2, 1, 0]])


def test_planes(tmp_path: Path) -> None:
    """Of so many tokens that the last ones' planes of rank 256 lie there."""
    blocks, first = 16, 2**23
    tokens = first + 3
    numbers, order = torch.zeros(tokens, dtype=torch.int32), torch.zeros(tokens, dtype=torch.int32)
    order[first:] = torch.tensor([2, 0, 1])
    tile = torch.tensor([[0, first, 3]], dtype=torch.int32)
    routing = Routing("decode", 1, order, tile, torch.ones(1, dtype=torch.int32), numbers, numbers, numbers)
    planes = sparse(tmp_path / "planes", 2**31 + tokens * 256, torch.float32)[2**31 :].view(1, 1, tokens, 256)
    ids = torch.zeros(tokens, dtype=torch.int64)
    ids[:3] = torch.tensor([4, 1, 3])
    a = [randn(5, 16, seed=block) for block in range(blocks)]
    put = placed(a, torch.float32)
    embedding_planes(ids, put.arena, torch.tensor(put.at).view(1, 1, -1), torch.tensor([5]), routing, planes)
    assert torch.equal(planes[0, 0, first:], torch.cat(a, 1)[[3, 4, 1]])


def test_rows_that_stand_for_ids(tmp_path: Path) -> None:
    rows, first = half(1), FAR // H + 1
    vectors = sparse(tmp_path / "vectors", FAR + 8 * H, torch.float32)
    vectors.view(-1, H)[first : first + 3] = rows.float()
    row_of = torch.tensor([first, first + 1, first + 2], dtype=torch.int32)
    nothing = torch.zeros(1, dtype=torch.int64)
    y = far_apart(tmp_path / "y", torch.zeros(3, H, dtype=torch.float16))
    own = OwnRows(row_of, nothing, torch.tensor([3]), vectors, nothing)
    replace_rows(y, torch.tensor([1, 0, 2]), routing_of("decode", [0, 0, 0], 1), own)
    assert torch.equal(y, rows[[1, 0, 2]])


def test_input_gains(tmp_path: Path) -> None:
    x, gain = half(2), randn(H, seed=3)
    put = placed([gain], torch.float32)
    out = far_apart(tmp_path / "out", torch.zeros_like(x))
    routing, offset = routing_of("decode", [-1, 0, 0], 1), torch.tensor(put.at)
    input_gain(far_apart(tmp_path / "x", x), out, put.arena, offset, routing)
    want = x.clone()
    want[1:] = (x[1:].float() * gain).half()
    assert torch.equal(out, want)


def test_products_of_gained_rows(tmp_path: Path) -> None:
    y, gained = half(4), half(5)
    far = far_apart(tmp_path / "y", y)
    routing, offset = routing_of("decode", [0, -1, 0], 1), torch.zeros(1, dtype=torch.int64)
    take_gained(far, far_apart(tmp_path / "gained", gained), offset, routing)
    assert torch.equal(far, torch.stack([gained[0], y[1], gained[2]]))

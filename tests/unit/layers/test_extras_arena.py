"""The arena of embeddings and heads: nothing overlaps, what is given back is taken again, moving keeps every byte."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lorry.errors import InternalError
from lorry.layers import extras_arena
from lorry.layers.extras import AdapterExtras, ChunkedEmbedding, HeadExtras
from lorry.layers.extras_arena import ExtrasArena, arena_bytes
from lorry.layers.slot_row import ALIGN

CPU = torch.device("cpu")


def test_a_shared_matrix_counts_once() -> None:
    shared, other = torch.zeros(5, 3), torch.zeros(100)
    extras = AdapterExtras({}, {}, ChunkedEmbedding(5, weight=shared, gain=other), HeadExtras(weight=shared))
    assert arena_bytes(extras) == 128 + 512
    assert arena_bytes(None) == 0
    arena = ExtrasArena(1024, torch.float32, CPU)

    def take(tensor: torch.Tensor) -> torch.Tensor:
        found = arena.take(tensor)
        assert found is not None
        return found

    made = extras.map(take)
    assert arena.used == 128 + 512
    assert made.embedding is not None
    assert isinstance(made.head, HeadExtras)
    assert made.embedding.weight is made.head.weight
    arena.release(made)
    assert arena.used == 0
    with pytest.raises(InternalError, match="were not taken there"):
        arena.release(made)


@given(st.data())
def test_in_any_order(data: st.DataObject) -> None:
    arena = ExtrasArena(40 * ALIGN, torch.float32, CPU)
    held: list[tuple[torch.Tensor, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extras_arena, "_MOVED_AT_ONCE", 3 * ALIGN)
        for number in range(1, data.draw(st.integers(1, 25)) + 1):
            if len(held) > data.draw(st.integers(0, 30)):
                arena.give_back(held.pop(data.draw(st.integers(0, len(held) - 1)))[0])
                continue
            want = torch.full((data.draw(st.integers(1, 12 * ALIGN)),), number, dtype=torch.uint8)
            found = arena.take(want)
            size = -(-want.nbytes // ALIGN) * ALIGN
            if found is None and size <= 40 * ALIGN - arena.used:
                moved = arena.compact()
                held = [(moved(tensor), value) for tensor, value in held]
                found = arena.take(want)
                assert found is not None, "all that is free is one piece now"
            if found is None:
                assert size > 40 * ALIGN - arena.used
                continue
            assert arena.place(found) % ALIGN == 0
            held.append((found.copy_(want), number))
            assert all(bool((tensor == value).all()) for tensor, value in held)
    assert arena.used == sum(-(-tensor.nbytes // ALIGN) * ALIGN for tensor, _ in held)


def test_a_piece_that_moves_by_less_than_its_size_keeps_its_bytes() -> None:
    arena = ExtrasArena(16 * ALIGN, torch.float32, CPU)
    before, want = arena.take(torch.zeros(ALIGN, dtype=torch.uint8)), torch.arange(9 * ALIGN) % 251
    found = arena.take(want.to(torch.uint8))
    assert before is not None
    assert found is not None
    found.copy_(want)
    arena.give_back(before)
    moved = arena.compact()
    assert arena.place(moved(found)) == 0
    assert torch.equal(moved(found), want.to(torch.uint8))

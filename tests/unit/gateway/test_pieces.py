"""Pieces are cut and merged without losing, mixing or reordering anything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lorry.gateway.pieces import Merger, Piece
from lorry.gateway.relay import Batch
from lorry.request import TokenLogprobs

IDS = st.lists(st.integers(0, 99), max_size=20)
EVENTS = st.lists(st.tuples(st.integers(0, 3), IDS, st.text("ab", max_size=3), st.booleans()), max_size=30)


def scores(ids: list[int]) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(i, -float(i)) for i in ids)


@given(EVENTS, st.integers(1, 7))
def test_every_choice_gets_its_own_back(events: list[tuple[int, list[int], str, bool]], most: int) -> None:
    merger, taken = Merger(), []
    for choice, ids, text, take in events:
        waiting = merger.add(choice, tuple(ids), text, scores(ids))
        assert waiting >= len(ids)
        if take:
            taken.append(merger.take())
    taken.append(merger.take())
    assert merger.take() == ()
    for pieces in taken:
        assert [piece.choice for piece in pieces] == sorted({piece.choice for piece in pieces})
    parts = [part for pieces in taken for piece in pieces for part in piece.split(most)]
    for choice in range(4):
        mine = [part for part in parts if part.choice == choice]
        assert all(len(part.token_ids) <= most for part in mine)
        ids = [i for found, ids, _, _ in events if found == choice for i in ids]
        assert [i for part in mine for i in part.token_ids] == ids
        assert tuple(one for part in mine for one in part.logprobs) == scores(ids)
        assert "".join(part.text for part in mine) == "".join(text for found, _, text, _ in events if found == choice)


def test_text_comes_with_the_last_part_as_it_may_lag() -> None:
    assert list(Piece(1, (1, 2, 3, 4, 5), "abc").split(2)) == [
        Piece(1, (1, 2)),
        Piece(1, (3, 4)),
        Piece(1, (5,), "abc"),
    ]
    assert list(Piece(0, (1, 2), "x").split(2)) == [Piece(0, (1, 2), "x")]
    assert list(Piece(0, (), "x").split(2)) == [Piece(0, (), "x")]


def test_nothing_of_an_answer_is_in_a_repr() -> None:
    said = repr((Piece(0, (4711,), "secret"), Batch((Piece(0, (4711,), "secret"),), None)))
    assert "1 tokens" in said
    assert "secret" not in said
    assert "4711" not in said

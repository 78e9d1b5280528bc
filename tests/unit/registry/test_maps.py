"""The persistent map: a dict in every answer, and old values stay what they were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry.registry.maps import PersistentMap


class Colliding:
    """Equal by its number alone; hashes of many are the same, in all bits or in the low ones."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return (self.number % 3) << 40 if self.number % 2 else -7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Colliding) and other.number == self.number

    def __repr__(self) -> str:
        return f"c{self.number}"


KEYS = st.one_of(st.integers(-5, 400), st.integers(0, 400).map(Colliding), st.text(max_size=2))
STEPS = st.lists(
    st.tuples(st.dictionaries(KEYS, st.integers(), max_size=90), st.lists(KEYS, max_size=20)), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_any_history_is_a_dicts(steps: list[tuple[dict[Any, int], list[Any]]]) -> None:
    model: dict[Any, int] = {}
    found: PersistentMap[Any, int] = PersistentMap()
    past: list[tuple[dict[Any, int], PersistentMap[Any, int]]] = []
    for put, without in steps:
        past.append((dict(model), found))
        for key in without:
            model.pop(key, None)
        model.update(put)
        found = found.updated(put.items(), without)
        assert found == model
        assert (len(found), dict(found)) == (len(model), model)
        assert all(found[key] == value and key in found for key, value in model.items())
        assert found.get("absent key") is None
    for was, value in past:
        assert value == was
        assert len(value) == len(was)


def test_many_equal_hashes() -> None:
    keys = [Colliding(2 * number) for number in range(500)]
    found = PersistentMap((key, key.number) for key in keys)
    assert [found[key] for key in keys] == [key.number for key in keys]
    assert len(found.updated((), keys[:400])) == 100


def test_absent() -> None:
    found = PersistentMap([("a", 1)])
    assert found.get("b", 7) == 7
    assert "b" not in found
    with pytest.raises(KeyError):
        found["b"]
    assert found.updated() is found
    assert PersistentMap.of(found) is found
    assert PersistentMap.of({"a": 1}) == found
    assert repr(found) == "PersistentMap({'a': 1})"


def _leaves(node: Any) -> list[dict[Any, Any]]:
    return [node] if isinstance(node, dict) else [leaf for child in node for leaf in _leaves(child)]


@pytest.mark.parametrize("size", [1000, 20_000])
def test_an_update_copies_one_leaf_of_bounded_size_whatever_the_size(size: int) -> None:
    old = PersistentMap((f"adapter-{number}", number) for number in range(size))
    new = old.updated([("adapter-7", -1), ("another", 0)], ["adapter-9"])
    before = {id(leaf): leaf for leaf in _leaves(old._root)}
    copied = [leaf for leaf in _leaves(new._root) if id(leaf) not in before]
    assert len(copied) <= 3
    assert max(len(leaf) for leaf in _leaves(new._root)) <= 64
    assert (len(old), len(new), new["adapter-7"], old["adapter-7"]) == (size, size, -1, 7)

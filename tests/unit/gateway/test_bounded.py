"""What operators are shown stays small, whatever is in it."""

from __future__ import annotations

import json

from lorry.gateway.bounded import MOST_CHARACTERS, MOST_ENTRIES, bounded


def test_small_values_are_as_they_were() -> None:
    value = {"a": [1, 2.5, None, True], "b": {"c": "text", "d": []}, "e": {"f": [{"g": 1}]}}
    assert bounded(value) == value


def test_everything_is_cut_and_says_so() -> None:
    wide = {f"k{i}": {"rows": [{"text": "x" * 10_000}] * 1000} for i in range(1000)}
    found = bounded(wide)
    assert len(found) == MOST_ENTRIES + 1
    assert found["..."] == f"{1000 - MOST_ENTRIES} more"
    rows = found["k0"]["rows"]
    assert len(rows) == MOST_ENTRIES + 1
    assert rows[-1] == f"... {1000 - MOST_ENTRIES} more"
    assert len(rows[0]["text"]) < MOST_CHARACTERS + 40


def test_numbers_may_be_a_few_more() -> None:
    assert len(bounded(list(range(256)))) == 256
    assert len(bounded(list(range(10_000)))) == 4 * MOST_ENTRIES + 1


def test_depth_and_other_types_end_too() -> None:
    deep: dict[str, object] = {}
    for _ in range(100):
        deep = {"deeper": deep}
    assert len(json.dumps(bounded(deep))) < 300
    assert bounded({1: object()})["1"].startswith("<object")

"""The list of ``make mutants`` follows the code: what is to be taken out is there, once, and so are the tests."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

from tests.mutants.guards import GUARDS

ROOT = Path(__file__).resolve().parents[3]


@cache
def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_every_guard_stands_once_in_its_file() -> None:
    found = {guard.name: source(guard.path).count(guard.text) for guard in GUARDS}
    assert {name: count for name, count in found.items() if count != 1} == {}


def test_names_are_different_and_nothing_is_taken_out_twice() -> None:
    names = Counter(guard.name for guard in GUARDS)
    changes = Counter((guard.path, guard.text, guard.without) for guard in GUARDS)
    assert [one for one, count in (*names.items(), *changes.items()) if count > 1] == []


def test_what_is_left_is_a_program() -> None:
    for guard in GUARDS:
        assert guard.without != guard.text
        ast.parse(source(guard.path).replace(guard.text, guard.without), guard.name)


def test_every_test_is_there() -> None:
    for guard in GUARDS:
        assert guard.tests, guard.name
        for test in guard.tests:
            path, _, function = test.partition("::")
            if not function:  # a whole file of tests
                assert source(path), f"{guard.name}: {test}"
                continue
            name = function.partition("[")[0]
            # A stateful machine's tests are a name that is given its TestCase.
            assert any(form in source(path) for form in (f"def {name}(", f"\n{name} = ")), f"{guard.name}: {test}"

"""What docs/security.md names is there: every test, every module; and each of OWASP's ten has a guard and a test."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROOTS = {"lorry": "platform", "lorry_admin": "admin", "lorry_migrations": "migrations", "lorry_kernels": "kernels"}


def _tests() -> list[str]:
    return sorted(set(re.findall(r"tests/[\w/]+\.py(?:::\w+)?", PAGE)))


def _modules() -> list[str]:
    return sorted(set(re.findall(r"`((?:lorry|lorry_admin|lorry_migrations|lorry_kernels)(?:\.\w+)+)`", PAGE)))


def test_there_is_much_to_look_for() -> None:
    assert len(_tests()) > 40
    assert len(_modules()) > 30


@pytest.mark.parametrize("name", _tests())
def test_a_named_test_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert not function or function in found


@pytest.mark.parametrize("name", _modules())
def test_a_named_module_is_there(name: str) -> None:
    first, *rest = name.split(".")
    place = ROOT.joinpath(ROOTS[first], first, *rest)
    assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


@pytest.mark.parametrize("number", range(1, 11))
def test_each_of_the_ten_has_its_four_parts(number: int) -> None:
    (section,) = re.findall(rf"^### API{number}: .*?(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    for part in ("Risk", "Guard", "Test", "Left to you"):
        assert section.count(f"**{part}.**") == 1
    parts = re.split(r"\*\*\w[\w ]*\.\*\*", section)
    assert "`lorry" in parts[2] or number == 9
    assert "tests/" in parts[3]

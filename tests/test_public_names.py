"""A module's public names are those in ``__all__``: complete, importable, once each."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

PACKAGES = ("lorry", "lorry_kernels", "lorry_admin", "lorry_migrations")
GENERATED = ("lorry.api.v1", "lorry.internal.v1")
RUN_BY_A_TOOL = ("lorry_migrations.env", "lorry_migrations.versions")
"""Alembic executes these by path inside a migration; they have no importers."""


def _modules() -> list[str]:
    names: list[str] = []
    for package in PACKAGES:
        names.append(package)
        path = importlib.import_module(package).__path__
        names += [module.name for module in pkgutil.walk_packages(path, f"{package}.", onerror=_raise)]
    skipped = (*GENERATED, *RUN_BY_A_TOOL)
    return [
        name
        for name in names
        if name.rpartition(".")[2] != "__main__" and not any(name == s or name.startswith(f"{s}.") for s in skipped)
    ]


def _raise(name: str) -> None:
    raise ImportError(f"{name} cannot be imported")


def _defined(tree: ast.Module) -> set[str]:
    """Public classes, functions and constants that the module itself defines at its top level."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("name", _modules())
def test_all_is_complete_and_importable(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    declared = getattr(module, "__all__", None)
    if declared is None:
        assert _defined(tree) == set(), f"{name} defines public names but no __all__"
        return
    assert len(declared) == len(set(declared)), f"{name}.__all__ repeats a name"
    assert [public for public in declared if not hasattr(module, public)] == [], (
        f"{name}.__all__ names what is not there"
    )
    assert _defined(tree) - set(declared) == set(), f"{name} defines public names that __all__ leaves out"

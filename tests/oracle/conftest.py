"""One world for each base, made when a test first asks for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.oracle.worlds import BASES, World

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.append(BENCHMARKS)


@pytest.fixture(scope="session")
def world_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], World]:
    worlds: dict[str, World] = {}

    def find(name: str) -> World:
        if name not in worlds:
            worlds[name] = World(tmp_path_factory.mktemp("world"), BASES[name])
        return worlds[name]

    return find

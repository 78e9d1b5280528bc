"""One world for each base, made when a test first asks for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.oracle.worlds import BASES, World


@pytest.fixture(scope="session")
def world_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], World]:
    worlds: dict[str, World] = {}

    def find(name: str) -> World:
        if name not in worlds:
            worlds[name] = World(tmp_path_factory.mktemp("world"), BASES[name])
        return worlds[name]

    return find

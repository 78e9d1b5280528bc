"""One platform with two tenants for each test, which begins with a copy of what was filled once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.web.world import Filled, World, fill, world


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return asyncio.run(fill(tmp_path_factory.mktemp("filled")))


@pytest.fixture
async def here(tmp_path: Path, filled: Filled) -> AsyncIterator[World]:
    async with world(tmp_path, filled=filled) as made:
        yield made

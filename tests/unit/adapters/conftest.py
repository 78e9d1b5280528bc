"""Fixtures of the tiers' tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.adapters.tier_world import CountingStore, Tier, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "store").mkdir()
    return World(tmp_path, CountingStore(tmp_path / "store"))


@pytest.fixture
def tier(world: World) -> Iterator[Tier]:
    found = Tier(world)
    yield found
    world.store.gate.set()
    found.close()
    found.check_integrity()

"""One platform of each base for all tests that leave it whole; those that break it start their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.random_base import Files, Lab, laboratory, write_files
from tests.e2e.world import World, fill, running, settings, write_base


@pytest.fixture(scope="package")
def tracer_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracer") / "base"
    write_base(folder)
    return folder


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def world(tracer_base: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    root = tmp_path_factory.mktemp("world")
    async with running(root, settings(root / "home", tracer_base)) as made:
        await fill(made)
        yield made


@pytest.fixture(scope="package")
def random_files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("random"))


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def lab(random_files: Files, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    """Shared like ``world``: tests bring prompts of their own and leave it whole."""
    async with laboratory(tmp_path_factory.mktemp("lab"), random_files) as made:
        yield made

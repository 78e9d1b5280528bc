"""One platform of each base for all tests that leave it whole; those that break it start their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lorry.adapters.report import Check, ValidationReport
from lorry.adapters.sandbox.examine import examine_async
from lorry.adapters.validate import Limits, validate_directory
from lorry.cli import platform as cli_platform
from lorry.config import StoreConfig
from lorry.layers.spec import DecoderSpec
from tests.e2e.random_base import Files, Lab, laboratory, write_files
from tests.e2e.world import World, fill, running, settings, write_base


async def validate_here(
    path: Path,
    spec_config: Mapping[str, Any],
    limits: Limits,
    base_name: str | None = None,
    base_dir: Path | None = None,
    on_check: Callable[[Check], None] = lambda check: None,
) -> ValidationReport:
    """As ``examine_async``, every check and the probe, without a process of its own, which imports torch each time."""
    spec = DecoderSpec.from_config(spec_config)
    report = await asyncio.to_thread(validate_directory, path, spec, limits, base_name, base_dir)
    for check in report.checks:
        on_check(check)
    return report


@pytest.fixture(scope="package", autouse=True)
def quick_validation() -> Iterator[None]:
    """These tests register hundreds of adapters; those that are about registration do it ``in_the_sandbox``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli_platform, "examine_async", validate_here)
        yield


@contextmanager
def in_the_sandbox() -> Iterator[None]:
    """Validation as ``lorry serve`` does it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli_platform, "examine_async", examine_async)
        yield


@pytest.fixture
def sandboxed(quick_validation: None) -> Iterator[None]:
    """The whole test ``in_the_sandbox``."""
    with in_the_sandbox():
        yield


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


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def mortal_world(tracer_base: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """For those that end its engine: each leaves another one warm. Its adapters lie in a folder."""
    root = tmp_path_factory.mktemp("mortal-world")
    options = replace(settings(root / "home", tracer_base), store=StoreConfig(url=f"file://{root}/objects"))
    async with running(root, options) as made:
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

"""Fixtures for every test. The environment is set before torch loads."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads ruin shared cores
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on the CPU; it is read when their modules are imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers is an oracle here and has nothing to fetch

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.prepared_base import prepared_base

E2E = Path(__file__).parent / "e2e"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of two workers (``-n 2 --dist loadgroup``) one has all whole platforms, one after the other; a file's tests stay
    together everywhere, since they share what their fixtures made."""
    for item in items:
        group = "e2e" if item.path.is_relative_to(E2E) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """LORRY_TEST_REQUIRE=all: where everything is said to be installed, a skip is a failure."""
    report = yield
    if report.skipped and os.environ.get("LORRY_TEST_REQUIRE") == "all":
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped under LORRY_TEST_REQUIRE=all: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def base_dir() -> Path:
    """SmolLM2-135M-Instruct; mark the test ``model``."""
    return prepared_base()

"""Fixtures for every test. The environment is set before torch loads."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads ruin shared cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers is an oracle here and has nothing to fetch

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.prepared_base import prepared_base


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

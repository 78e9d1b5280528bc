"""Fixtures for every test. The environment is set before torch loads."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads ruin shared cores
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on the CPU; it is read when their modules are imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers is an oracle here and has nothing to fetch

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]  # xdist has no types

from tests.prepared_base import prepared_base
from tests.support.interpreter import hasten

settings.register_profile("lorry", deadline=None)  # whose machine is busy with something else has found nothing
settings.load_profile("lorry")

E2E = "tests/e2e/"


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """One worker has all whole platforms, one after the other; a file's tests stay together everywhere, since
    they share what their fixtures made. (xdist's own groups do nothing with pytest 9.2, whose ids it cannot change.)"""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        return E2E if path.startswith(E2E) else path


class Workers:
    """What only xdist asks for."""

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ByFile:
        return ByFile(config, log)


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.has_plugin("xdist"):
        config.pluginmanager.register(Workers())


def pytest_collection_finish() -> None:
    if "triton.runtime.interpreter" in sys.modules:  # some test here has kernels
        hasten()


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

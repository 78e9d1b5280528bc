"""The engine's process stays within its budget, and what comes and goes leaves nothing behind."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.results import keep_result
from tests.unit.benchmarks.conftest import BENCHMARKS

sys.path.append(BENCHMARKS)
from bench_memory import MB, SMOLLM2, TINY, measure
from engine_runs import write_tiny

SLACK_MB, LOADS_WITHIN_MB = 64, 16


@pytest.mark.timeout(120)
async def test_a_tiny_engine(tmp_path: Path) -> None:
    """Its budget is small beside what torch itself holds, so growth is held to the budget and the host images and less
    slack; a load that is not given back would be half a megabyte, sixty times."""
    setting = replace(TINY, requests=40, loads=(20, 80))
    result = await measure(write_tiny(tmp_path / "base"), tmp_path, setting, tiny=True)
    bound = (setting.budget_bytes + setting.host_bytes) / MB + 16
    assert result["load"]["growth_mb"] <= bound
    assert result["load"]["peak_growth_mb"] <= bound + 8
    assert abs(result["loads"]["difference_mb"]) <= LOADS_WITHIN_MB


@pytest.mark.model
@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_on_the_real_model(base_dir: Path, tmp_path: Path) -> None:
    result = await measure(base_dir, tmp_path, SMOLLM2, tiny=False)
    keep_result("memory", result)
    assert result["load"]["growth_mb"] <= SMOLLM2.budget_bytes / MB + SLACK_MB
    assert abs(result["loads"]["difference_mb"]) <= LOADS_WITHIN_MB

"""The benchmark of overlapping steps, at toy size: its figures mean nothing here."""

from __future__ import annotations

from pathlib import Path

import bench_overlap
import pytest
from bench_overlap import compare
from engine_runs import engine_config, write_tiny


async def test_both_ways_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_overlap, "TOKENS", 6)
    config = engine_config(write_tiny(tmp_path / "base"), tmp_path, tiny=True)
    found = await compare(config, rows=3, device_ms=2.0, rounds=2)
    assert (found["rows"], found["device_ms"]) == (3, 2.0)
    assert min(found["step_ms"], found["overlapped_ms"]) >= 2.0, "each step takes the device's time"
    assert len(found["times_of_rounds"]) == 2
    assert min(found["times_of_rounds"]) <= found["times"] <= max(found["times_of_rounds"])

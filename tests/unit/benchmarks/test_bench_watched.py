"""The benchmark of being watched: its arithmetic, and, at a size at which its ratio says nothing, that it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_watched import SMALL, Run, interval, measure, summary
from engine_runs import write_tiny


def test_intervals() -> None:
    assert interval([1.0, 1.0, 1.0]) == {"ratio": 1.0, "low": 1.0, "high": 1.0}
    found = interval([0.5, 2.0, 1.0, 1.0])
    assert found["ratio"] == pytest.approx(1.0)
    assert 0.5 < found["low"] < 1.0 < found["high"] < 2.0


def test_pairs_are_compared_with_each_other() -> None:
    """A machine that is twice as slow in one pair changes no ratio."""
    runs = [
        Run(pair, watched, 100, slow * (1.2 if watched else 1.0), slow * 9.0, 0, 0)
        for pair, slow in ((0, 1.0), (1, 2.0))
        for watched in (True, False)
    ]
    found = summary(runs, SMALL)
    assert found["cpu_per_token"] == pytest.approx({"ratio": 1.02, "low": 1.02, "high": 1.02})
    assert found["gateway_alone"] == pytest.approx({"ratio": 1.2, "low": 1.2, "high": 1.2})
    assert found["gateway_us_a_request_more"] == pytest.approx(1e6 * 0.6 / (2 * SMALL.requests))


@pytest.mark.soak
async def test_it_runs_pairs_and_says_what_they_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five platforms, one after the other."""
    result = await measure(write_tiny(tmp_path / "base"), tmp_path, SMALL, tiny=True)
    result = json.loads(json.dumps(result))
    assert [run["watched"] for run in result["runs"]].count(True) == SMALL.pairs
    for run in result["runs"]:
        assert run["tokens"] == SMALL.requests * SMALL.output_tokens
        assert run["cpu_ms_a_token"] > 0
        assert run["traces"] == (SMALL.requests if run["watched"] else 0)
        assert (run["scrapes"] > 0) is run["watched"]
    ratio = result["cpu_per_token"]
    assert 0 < ratio["low"] <= ratio["ratio"] <= ratio["high"]
    assert capsys.readouterr().out.count("ms a token") == 2 * SMALL.pairs

"""Many streams through one gateway, beside readers that stop reading: all whole, all billed, the idle ones cut.

What must hold of every stream, row and quota is asserted by the benchmark itself (``benchmarks/bench_load.py``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import bench_load
import pytest
from bench_load import PHASES, SAME_PACE, Load, check, measure, of_one_pace
from load_clients import Reply
from load_engine import Pace
from rich.progress import Progress

from tests.support.results import keep_result

STALLED_MIB = 2.0
"""Of one stalled reader, at most: what came for it in the seconds until it was cut, as text and as messages."""


async def run(
    load: Load, rounds: int, folder: Path, phases: tuple[str, ...] = PHASES, same_pace: float = SAME_PACE
) -> dict[str, Any]:
    with Progress(disable=True) as progress:
        return await measure(load, rounds, progress, folder, phases, same_pace)


async def test_all_streams_are_whole_and_stalled_readers_are_cut(tmp_path: Path) -> None:
    """Twice, so that a seat that a stalled reader kept would be missed."""
    load = Load(streams=40, seconds=3.0, spread_s=0.5, stalled=4, stall_seconds=1.0)
    result = await run(load, 2, tmp_path, ("stalled",), math.inf)
    assert result["counted"] == [0, 1]
    found = result["stalled"]
    assert found["tokens"] == 40 * 60
    assert found["messages"] <= found["tokens"]
    assert found["stalled"]["readers"] == 4
    assert found["stalled"]["told"] == {"CANCELLED": 2, "broken off": 2}


def test_a_stream_with_a_hole_does_not_pass() -> None:
    load = Load(streams=1, rate=1, seconds=2.0)
    whole = Reply("r", tokens=2, ended=True)
    check([whole], load)
    for name, value in (("tokens", 1), ("ended", False), ("error", "UNAVAILABLE"), ("wrong", "token 3 for 2")):
        bad = copy.copy(whole)
        setattr(bad, name, value)
        with pytest.raises(AssertionError):
            check([bad], load)


def test_rounds_of_a_slow_machine_do_not_count() -> None:
    """Whatever they show: the probe alone decides."""
    rounds = [{"gateway": {"probe_ms": one}, "stalled": {"probe_ms": 2.0}} for one in (3.0, 2.3, 2.2, 2.0, 4.0)]
    assert of_one_pace(rounds, SAME_PACE) == [1, 2, 3]
    assert of_one_pace(rounds[:1], SAME_PACE) == [0]
    assert of_one_pace(rounds, math.inf) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("probes", "counted", "kept", "same"),
    [
        ((2.0, 2.1, 2.2), [0, 1, 2], 10.0, True),
        ((3.0, 2.0, 2.1, 2.2), [1, 2, 3], 20.0, True),
        ((2.0, 2.4, 2.4, 2.4, 2.1, 2.4, 2.4, 2.4, 2.5), [0, 1, 4], 10.0, False),
    ],
)
async def test_rounds_go_on_until_enough_count_and_their_median_is_kept(
    monkeypatch: pytest.MonkeyPatch, probes: tuple[float, ...], counted: list[int], kept: float, same: bool
) -> None:
    left, p99 = iter(probes), iter((10.0, 5.0, 20.0, 90.0, 95.0, 1.0, 2.0, 3.0, 4.0))

    @asynccontextmanager
    async def nowhere(*_: object) -> AsyncIterator[None]:
        yield

    async def phase(*_: object) -> dict[str, Any]:
        value = {"p99": next(p99)}
        return {"probe_ms": next(left), "first_ms": dict(value), "token_ms": dict(value)}

    monkeypatch.setattr(bench_load, "world", nowhere)
    monkeypatch.setattr(bench_load, "phase", phase)
    result = await run(Load(), 3, Path(), ("gateway",))
    assert result["probe_ms"] == list(probes)
    assert (result["counted"], result["same_pace"]) == (counted, same)
    assert result["gateway"]["token_ms"]["p99"] == kept


def test_a_pace_is_told_in_a_seed() -> None:
    for pace in (Pace(20), Pace(20, 0, 50), Pace(1, 4096), Pace(65_535, 4096, 65_535)):
        assert Pace.of(pace.seed) == pace
        assert 0 <= pace.seed < 2**63


@pytest.mark.soak
@pytest.mark.timeout(2400)
async def test_500_streams_and_50_stalled_readers(tmp_path: Path) -> None:
    load = Load()
    result = await run(load, 3, tmp_path)
    keep_result("load", result)
    assert (load.streams, load.rate, load.stalled) == (500, 20, 50)
    for name in ("gateway", "stalled"):
        assert result[name]["token_ms"]["p99"] < 50.0, name
    memory = {name: result[name]["mib"]["peak"] for name in ("gateway", "stalled")}
    assert memory["stalled"] - memory["gateway"] < STALLED_MIB * load.stalled
    cut = result["stalled"]["stalled"]
    assert load.stall_seconds - 0.5 < cut["cut_s_min"] <= cut["cut_s_max"] < load.stall_seconds + 2.0

"""Counts of requests without a bill: bounded, written again until they are there, forgotten when they are old."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from lorry.errors import Unavailable
from lorry.gateway import outcomes
from lorry.gateway.outcomes import Outcomes
from lorry.registry.usage.outcomes import Outcome

HOUR_S = 3600.0
ANNA: Any = "tn_anna"
BERT: Any = "tn_bert"


class Sink:
    """As the registry: keeps the larger of two counts."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, Outcome], int] = {}
        self.writes: list[Mapping[Outcome, int]] = []
        self.failing: Exception | None = None
        self.takes_it_first = False
        """Before it fails: its answer is what is lost."""

    async def write(self, writer: str, counts: Mapping[Outcome, int]) -> None:
        self.writes.append(counts)
        if self.failing is None or self.takes_it_first:
            for outcome, count in counts.items():
                key = writer, outcome
                self.kept[key] = max(count, self.kept.get(key, 0))
        if self.failing is not None:
            raise self.failing

    def sums(self) -> dict[tuple[str, str, str], int]:
        found: dict[tuple[str, str, str], int] = {}
        for (_, one), count in self.kept.items():
            name = one.tenant_id, one.adapter_id, one.reason
            found[name] = found.get(name, 0) + count
        return found


class Bench:
    def __init__(self, keys: int = outcomes.KEYS) -> None:
        self.now = 1000 * HOUR_S
        self.sink = Sink()
        self.outcomes = Outcomes(self.sink, lambda: self.now, keys)

    def add(self, reason: str, adapter: str = "a", tenant: Any = ANNA) -> None:
        self.outcomes.add(tenant, adapter, reason)


async def test_counts_are_by_tenant_adapter_and_reason() -> None:
    bench = Bench()
    for reason in ("CANCELLED", "CANCELLED", "OVERLOADED"):
        bench.add(reason)
    bench.add("CANCELLED", "")
    bench.add("CANCELLED", tenant=BERT)
    await bench.outcomes.flush()
    assert bench.sink.sums() == {
        (ANNA, "a", "CANCELLED"): 2,
        (ANNA, "a", "OVERLOADED"): 1,
        (ANNA, "", "CANCELLED"): 1,
        (BERT, "a", "CANCELLED"): 1,
    }


async def test_what_was_written_is_not_written_again_until_it_grows() -> None:
    bench = Bench()
    bench.add("CANCELLED")
    bench.add("OVERLOADED")
    await bench.outcomes.flush()
    await bench.outcomes.flush()
    bench.add("OVERLOADED")
    await bench.outcomes.flush()
    assert [sorted(one.reason for one in counts) for counts in bench.sink.writes] == [
        ["CANCELLED", "OVERLOADED"],
        ["OVERLOADED"],
    ]
    assert bench.sink.sums()[ANNA, "a", "OVERLOADED"] == 2


@pytest.mark.parametrize("taken", [False, True])
async def test_a_registry_that_fails_gets_them_later_and_once(taken: bool) -> None:
    bench = Bench()
    bench.sink.failing, bench.sink.takes_it_first = Unavailable("gone"), taken
    bench.add("CANCELLED")
    with pytest.raises(Unavailable):
        await bench.outcomes.flush()
    bench.add("CANCELLED")
    bench.now += 5 * HOUR_S
    bench.sink.failing = None
    await bench.outcomes.flush()
    assert bench.sink.sums() == {(ANNA, "a", "CANCELLED"): 2}


async def test_what_comes_during_a_write_is_written_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.add("CANCELLED")
    write = bench.sink.write

    async def late(writer: str, counts: Mapping[Outcome, int]) -> None:
        await write(writer, counts)
        bench.add("CANCELLED")

    monkeypatch.setattr(bench.sink, "write", late)
    await bench.outcomes.flush()
    monkeypatch.undo()
    await bench.outcomes.flush()
    assert bench.sink.sums() == {(ANNA, "a", "CANCELLED"): 2}


async def test_adapters_beyond_the_bound_are_counted_without_their_id() -> None:
    bench = Bench(keys=3)
    for number in range(50):
        bench.add("CANCELLED", f"a{number}")
    bench.add("CANCELLED", "a1")
    assert len(bench.outcomes._counts) == 4
    await bench.outcomes.flush()
    assert bench.sink.sums() == {
        (ANNA, "a0", "CANCELLED"): 1,
        (ANNA, "a1", "CANCELLED"): 2,
        (ANNA, "a2", "CANCELLED"): 1,
        (ANNA, "", "CANCELLED"): 47,
    }


async def test_hours_that_are_over_are_forgotten_and_a_clock_set_back_loses_nothing() -> None:
    bench = Bench()
    bench.add("CANCELLED")
    await bench.outcomes.flush()
    bench.now += HOUR_S
    await bench.outcomes.flush()
    bench.now -= HOUR_S
    bench.add("CANCELLED")
    await bench.outcomes.flush()
    assert bench.sink.sums() == {(ANNA, "a", "CANCELLED"): 2}
    bench.now += 2 * HOUR_S
    await bench.outcomes.flush()
    assert not bench.outcomes._counts
    assert not bench.outcomes._written


async def test_hours_are_those_of_the_end() -> None:
    bench = Bench()
    bench.now -= 1
    bench.add("CANCELLED")
    bench.now += 1
    bench.add("CANCELLED")
    await bench.outcomes.flush()
    assert sorted(one.hour.timestamp() / HOUR_S for _, one in bench.sink.kept) == [999, 1000]


async def test_two_processes_never_share_a_count() -> None:
    bench, other = Bench(), Bench()
    other.outcomes._sink = bench.sink
    bench.add("CANCELLED")
    other.add("CANCELLED")
    await bench.outcomes.flush()
    await other.outcomes.flush()
    assert bench.sink.sums() == {(ANNA, "a", "CANCELLED"): 2}


async def test_a_round_that_fails_ends_nothing() -> None:
    bench = Bench()
    running = asyncio.create_task(bench.outcomes.run(0.001))
    bench.add("CANCELLED")
    for error in (Unavailable("gone"), ValueError("odd")):
        bench.sink.failing = error
        seen = len(bench.sink.writes)
        while len(bench.sink.writes) < seen + 2:
            await asyncio.sleep(0.001)
    bench.sink.failing = None
    while not bench.sink.kept:
        await asyncio.sleep(0.001)
    running.cancel()


async def test_the_end_writes_what_is_left_and_says_what_is_lost(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    bench.add("CANCELLED")
    await bench.outcomes.close()
    assert bench.sink.sums() == {(ANNA, "a", "CANCELLED"): 1}
    assert not caplog.records
    bench.add("CANCELLED")
    bench.add("OVERLOADED")

    async def never(writer: str, counts: Mapping[Outcome, int]) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(bench.sink, "write", never)
    monkeypatch.setattr(outcomes, "CLOSE_S", 0.01)
    with caplog.at_level(logging.WARNING):
        await bench.outcomes.close()
    assert "counts of 2 requests without a bill are lost: TimeoutError" in caplog.text


async def test_without_a_registry_nothing_is_kept() -> None:
    plain = Outcomes(None, lambda: 0.0)
    plain.add(ANNA, "a", "CANCELLED")
    await plain.flush()
    assert not plain._counts

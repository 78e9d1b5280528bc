"""What an engine counts is what happened: tokens, steps, hits, loads, slots, pages, faults."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.adapters.tier_views import TierCounts
from lorry.engine.arena import AdapterArena
from lorry.engine.events import StepRan
from lorry.engine.metrics import CACHED, COMPUTED, DECODE, OUTPUT, PREFILL
from lorry.errors import EngineUnavailable, InvalidRequest, SlotIntegrity
from lorry.gateway.metrics.catalog import LOADS, STEP, STEP_ADAPTERS
from lorry.histogram import LOAD_S, Histogram
from lorry.ids import AdapterKey
from tests.support.engines import ask, engine_config, preempt_at_every_step, running
from tests.support.tracers import write_tracer, write_tracer_base


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("metrics")
    write_tracer_base(made / "base")
    for number, rank in ((0, 1), (1, 8), (2, 12)):
        write_tracer(made / f"t{number}", number, rank)
    return made


async def test_an_idle_engine_has_counted_nothing(folder: Path) -> None:
    async with running(engine_config(folder / "base")) as r:
        found = await r.engine.metrics()
        info = await r.engine.info()
    assert (found.build, found.dtype) == (info.engine_build, info.dtype)
    assert found.cpu_s > 0
    assert found.started_at > 1.7e9
    assert found.tokens == {COMPUTED: 0, CACHED: 0, OUTPUT: 0}
    assert (found.waiting, found.running, found.occupancy, found.outcomes) == (0, 0, 0.0, {})
    assert found.slots == {"pinned": 0, "held": 0, "idle": 0, "empty": 16}
    assert found.pages["free"] == sum(found.pages.values()) > 0


async def test_tokens_steps_and_hits_of_a_known_load(folder: Path) -> None:
    steps: list[StepRan] = []
    async with running(engine_config(folder / "base")) as r:
        r.parts.core.listen(lambda event: steps.append(event) if isinstance(event, StepRan) else None)
        refs = [r.host.add(folder / f"t{i}") for i in range(3)]
        answers = await asyncio.gather(
            *(ask(r.engine, [1, 2, 3 + i], (None, *refs)[i % 4], 2 + i, tenant=f"t{i % 3}") for i in range(8))
        )
        with pytest.raises(InvalidRequest):
            await ask(r.engine, [], None, 4)
        found = await r.engine.metrics()
    assert found.outcomes == {"length": 8, "INVALID_REQUEST": 1}
    assert found.tokens == {
        COMPUTED: sum(answer.finished.prompt_tokens for answer in answers),
        CACHED: 0,
        OUTPUT: sum(answer.finished.output_tokens for answer in answers),
    }
    assert found.steps[PREFILL].count == sum(step.prefill_tokens > 0 for step in steps) > 0
    assert found.steps[DECODE].count == sum(step.prefill_tokens == 0 for step in steps) > 0
    assert sum(spread.total for spread in found.steps.values()) == pytest.approx(sum(step.seconds for step in steps))
    for spread, metric in ((found.mix, STEP_ADAPTERS), (found.loads["host"], LOADS), (found.steps[DECODE], STEP)):
        assert spread.bounds == metric.bounds, "as they are documented"
    assert found.mix.count == len(steps)
    assert found.mix.total == sum(step.distinct_adapters for step in steps)
    assert sum(found.hits.values()) == 8
    assert found.hits["base"] == 2
    assert found.loads["host"].count == 3
    assert (found.failed_loads, found.preemptions, found.evictions["device"]) == (0, 0, 0)
    assert found.slots == {"pinned": 0, "held": 0, "idle": 3, "empty": 13}
    assert found.ranks == {"used": 1 + 8 + 12, "padding": 7 + 0 + 4}, "a chunk has 8 rows"
    assert found.bytes["device_budget"] == 4 << 20
    assert found.bytes["device_adapters"] > 0


async def test_cached_tokens_are_those_that_answers_state(folder: Path) -> None:
    async with running(engine_config(folder / "base")) as r:
        prompt = list(range(1, 41))
        answers = [await ask(r.engine, [*prompt, 50 + i], None, 2, cache_salt=b"s") for i in range(3)]
        found = await r.engine.metrics()
    cached = sum(answer.finished.cached_prompt_tokens for answer in answers)
    assert cached == 2 * 32
    assert found.tokens[CACHED] == cached
    assert found.tokens[COMPUTED] == sum(answer.finished.prompt_tokens for answer in answers) - cached
    assert found.pages["cached"] == 2
    assert found.pages["used"] == 0
    assert found.occupancy == 0.0, "what nobody uses makes room"


async def test_what_runs_and_what_waits(folder: Path) -> None:
    config = engine_config(folder / "base")
    async with running(config) as r:
        asking = [asyncio.create_task(ask(r.engine, [1, 2, 3], None, 200)) for _ in range(12)]
        while (found := await r.engine.metrics()).running < 8:
            await asyncio.sleep(0)
        assert (found.running, found.waiting) == (8, 4)
        assert found.pages["used"] + found.pages["promised"] >= 8
        assert 0.0 < found.occupancy <= 1.0
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_what_is_computed_again_after_a_preemption_counts_again(folder: Path) -> None:
    async with running(engine_config(folder / "base")) as r:
        preempt_at_every_step(r)
        prompts = [[i + 1, *range(10, 50)] for i in range(3)]
        answers = await asyncio.gather(*(ask(r.engine, prompt, None, 6, cache_salt=b"s") for prompt in prompts))
        found = await r.engine.metrics()
    assert found.preemptions > 0
    assert found.tokens[COMPUTED] > sum(answer.finished.prompt_tokens for answer in answers)
    assert found.tokens[CACHED] == 0, "what it finds of its own when it resumes is no prompt that was spared"
    assert found.tokens[OUTPUT] == sum(answer.finished.output_tokens for answer in answers)


def spoil(arena: AdapterArena, adapter: AdapterKey) -> None:
    """Changes its bytes behind the slot table."""
    entry = arena.entry(arena.slot_of(adapter))
    assert entry is not None
    for weights in arena.sites.values():
        weights.a[:, entry.rows[0]] += 1.0


async def test_evictions_and_damaged_bytes(folder: Path) -> None:
    memory = engine_config(folder / "base").memory
    async with running(engine_config(folder / "base", memory=replace(memory, max_slots=1))) as r:
        refs = [r.host.add(folder / f"t{i}") for i in range(2)]
        for turn in range(4):
            await ask(r.engine, [1, 2, 3], refs[turn % 2], 2)
        found = await r.engine.metrics()
        assert found.evictions["device"] == 3
        assert found.loads["host"].count == 4
        assert found.integrity["slot"] == 0
        assert found.ranks == {"used": 8, "padding": 0}, "of the one that is there now"
        spoil(r.parts.arena, refs[1].key)
        with pytest.raises(SlotIntegrity):
            await ask(r.engine, [1, 2, 3], refs[1], 2)
        assert (await r.engine.metrics()).integrity["slot"] >= 1


async def test_tiers_are_told_through(folder: Path) -> None:
    loads = Histogram(LOAD_S)
    loads.observe(0.3)
    async with running(engine_config(folder / "base")) as r:
        r.parts.core.meter.tiers = lambda: TierCounts({"disk": loads.spread()}, 2, 3, 4, 5, 6, 7, 8)
        found = await r.engine.metrics()
    assert found.loads["disk"].count == 1
    assert found.loads["host"].count == 0
    assert (found.failed_loads, found.fetching) == (2, 3)
    assert (found.evictions["host"], found.evictions["disk"], found.integrity["cache_folder"]) == (4, 5, 6)
    assert (found.bytes["host_adapters"], found.bytes["disk_adapters"]) == (7, 8)


async def test_an_engine_that_has_ended_says_so(folder: Path) -> None:
    async with running(engine_config(folder / "base")) as r:
        await r.engine.close()
        with pytest.raises(EngineUnavailable):
            await r.engine.metrics()

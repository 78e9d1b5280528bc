"""Metrics of a whole platform over HTTP: an engine's process of its own, a known load, and the engine's death."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter

import pytest

from lorry.engine.supervise import Phase
from lorry.gateway.usage import read_rows
from tests.e2e.test_ops import get
from tests.e2e.world import BASE, CONTEXT, World, ask
from tests.support.scrapes import Scrape

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def scrape(world: World) -> Scrape:
    status, text, _ = await get(world.platform, "/metrics")
    assert status == 200
    return Scrape.of(text)


async def test_a_known_load_and_an_engine_that_dies(mortal_world: World) -> None:
    world, options = mortal_world, mortal_world.platform._settings
    tenants = [await world.tenant(name) for name in ("anna", "bert", "cara")]
    tracers = [await world.tracer(tenant, number, rank=4) for number, tenant in enumerate(tenants)]
    await world.settle()
    before = await scrape(world)
    told: Counter[str] = Counter()
    for turn in range(4):
        asked = [world.stream(t.key, ask(a.adapter, 3 + turn)) for t, a in zip(tenants, tracers, strict=True)]
        for answer in await asyncio.gather(*asked, world.generate(tenants[0].key, ask(BASE, 5))):
            assert answer.error is None
            usage = answer.usage
            told.update(requests=1, prompt=usage.prompt_tokens, output=usage.output_tokens)
    assert (await world.stream(tenants[0].key, ask(f"{tenants[0].resource}/adapters/none"))).error is not None
    await world.idle()
    after = await scrape(world)

    def grown(name: str, **labels: str) -> float:
        return after.sum(name, **labels) - before.sum(name, **labels)

    assert grown("lorry_gateway_requests_total") == told["requests"] + 1
    assert grown("lorry_gateway_requests_total", code="NOT_FOUND") == 1
    assert grown("lorry_gateway_billed_requests_total") == told["requests"]
    for kind in ("prompt", "output"):
        assert grown("lorry_gateway_tokens_total", kind=kind) == told[kind]
        assert grown("lorry_tenant_tokens_total", kind=kind) == told[kind]
    assert grown("lorry_tenant_requests_total", tenant=tenants[0].name) == 8
    assert grown("lorry_engine_tokens_total", kind="output") == told["output"]
    prompts = [grown("lorry_engine_tokens_total", kind=kind) for kind in ("computed", "cached")]
    assert sum(prompts) == told["prompt"]
    assert grown("lorry_engine_adapter_hits_total") == told["requests"]
    assert grown("lorry_engine_adapter_load_seconds_count", tier="object_store") == 3
    assert after.one("lorry_engine_up", replica="engine-0") == 1
    assert after.one("lorry_engine_queue_depth", replica="engine-0") == 0
    assert after.sum("lorry_engine_adapter_slots") == options.memory.max_slots
    assert after.sum("lorry_engine_integrity_failures_total") == 0
    assert after.one("lorry_gateway_registry_age_seconds") < 5
    assert after.one("lorry_gateway_revocation_lag_seconds_count") > 0
    rows = {row.ledger_id: row for row in read_rows(options.home.usage)}
    assert after.sum("lorry_gateway_billed_requests_total") == len(rows)
    assert after.one("lorry_gateway_tokens_total", kind="output") == sum(row.output_tokens for row in rows.values())

    router = Scrape.of((await get(world.platform, "/metrics/router"))[1])
    assert router.one("vllm:num_requests_running") == 0
    busy = [world.start(tenants[0].key, ask(BASE, CONTEXT - 64)) for _ in range(options.scheduler.max_sequences + 3)]
    reading = [asyncio.create_task(call.read()) for call in busy]
    seats = options.scheduler.max_sequences
    async with asyncio.timeout(20):  # all may queue before the first of them runs
        while (found := await scrape(world)).sum("lorry_engine_running") < seats:
            await asyncio.sleep(0.02)
        while (found := await scrape(world)).sum("lorry_engine_queue_depth") != 3:
            await asyncio.sleep(0.02)
    assert found.one("lorry_engine_running", replica="engine-0") == seats
    assert found.one("lorry_gateway_inflight") == len(busy)

    pid = world.platform.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*reading, return_exceptions=True)
    async with asyncio.timeout(20):
        while (down := await scrape(world)).one("lorry_engine_up", replica="engine-0"):
            await asyncio.sleep(0.02)
    assert not down.values.get("lorry_engine_running")
    assert down.sum("lorry_gateway_billed_requests_total") >= len(rows)
    async with asyncio.timeout(60):
        await world.platform.engine.reaches(Phase.WARM)
    async with asyncio.timeout(20):  # it is asked within a moment, which a machine with much to do may take longer
        while not (again := await scrape(world)).one("lorry_engine_up", replica="engine-0"):
            await asyncio.sleep(0.02)
    restarts = "lorry_engine_restarts_total"
    assert again.one(restarts, replica="engine-0") == after.one(restarts, replica="engine-0") + 1
    assert again.sum("lorry_engine_requests_total") == 0, "a new process counts anew"
    assert again.sum("lorry_gateway_requests_total", code="UNAVAILABLE") > after.sum(
        "lorry_gateway_requests_total", code="UNAVAILABLE"
    )
    assert again.sum("lorry_gateway_requests_total") == after.sum("lorry_gateway_requests_total") + len(busy)

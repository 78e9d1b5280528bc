"""The operators' port: ready only when something can be generated, and a state that stays small and keeps secrets."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry.cli.platform import Platform
from lorry.config import StoreConfig
from lorry.engine.settings import ModelNumbers, derive
from tests.e2e.calls import read_stream
from tests.e2e.world import BASE, CONTEXT, World, ask, settings

MOST_BYTES = 64 << 10
QUEUED = 1000


async def get(platform: Platform, path: str) -> tuple[int, str, dict[str, str]]:
    """Status, body, headers."""
    assert platform.ops is not None
    url = platform.ops.address + path

    def fetch() -> tuple[int, str, dict[str, str]]:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), dict(error.headers)

    return await asyncio.to_thread(fetch)


@pytest.mark.asyncio(loop_scope="package")
async def test_health_and_what_is_not_served(world: World) -> None:
    assert world.platform.ops is not None
    assert world.platform.ops.address.startswith("http://127.0.0.1:")
    assert (await get(world.platform, "/healthz"))[:2] == (200, "ok")
    assert (await get(world.platform, "/readyz"))[:2] == (200, "ready")
    for path in ("/", "/docs", "/openapi.json", "/internal/state/more"):
        assert (await get(world.platform, path))[0] == 404


@pytest.mark.asyncio(loop_scope="package")
async def test_the_state_of_an_idle_platform(world: World) -> None:
    await world.serves_on()
    status, body, headers = await get(world.platform, "/internal/state")
    found = json.loads(body)
    assert status == 200
    assert headers["cache-control"] == "no-store"
    assert found["supervisor"]["phase"] == "warm"
    assert found["supervisor"]["pid"] == world.platform.engine.pid
    assert found["gateway"]["live_calls"] == 0
    assert found["gateway"]["counters"]["outcomes"]["OK"] > 0
    assert found["engine"]["alive"] is True
    assert found["engine"]["watchdog"] == {"counts": {}, "last": []}
    assert found["engine"]["integrity"]["failures"] == 0
    assert found["engine"]["scheduler"]["running"] == 0


@pytest.mark.asyncio(loop_scope="package")
async def test_a_thousand_queued_requests_make_a_small_state_without_secrets(world: World) -> None:
    prompt = "what nobody but its tenant may read"
    tenants = [await world.tenant() for _ in range(5)]
    await world.settle()
    calls = [world.start(tenants[i % len(tenants)].key, ask(BASE, CONTEXT - 64, prompt=prompt)) for i in range(QUEUED)]
    readers = [asyncio.create_task(read_stream(call)) for call in calls]
    full = world.platform._settings.scheduler.max_sequences
    async with asyncio.timeout(60):
        while (await world.state())["scheduler"]["waiting"] < QUEUED - full:
            await asyncio.sleep(0.02)
    status, body, _ = await get(world.platform, "/internal/state")
    found = json.loads(body)
    assert status == 200
    assert len(body) < MOST_BYTES
    assert found["engine"]["scheduler"]["waiting"] >= QUEUED - full - 1
    assert found["gateway"]["live_calls"] == QUEUED
    assert 1 <= len(found["gateway"]["calls"]) <= 64
    secrets = [world.admin_key, prompt, *(tenant.key for tenant in tenants)]
    assert not [secret for secret in secrets if secret in body]
    for call in calls:
        call.cancel()
    ended = await asyncio.gather(*readers, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended), "none ended by itself before"
    await world.idle()
    await world.serves_on()


async def test_settings_are_said_at_the_start_and_kept_in_the_state(tracer_base: Path, tmp_path: Path) -> None:
    options = settings(tmp_path / "home", tracer_base)
    options = replace(options, store=StoreConfig(url=f"file://{tmp_path}/objects"))
    chosen = derive(ModelNumbers.read(tracer_base, "float32"), options.memory, 1, CONTEXT, {"page_tokens": 16})
    said: list[str] = []
    platform = Platform(replace(options, choices=chosen.choices), said.append)
    async with platform:
        _, body, _ = await get(platform, "/internal/state")
        found: dict[str, Any] = json.loads(body)["settings"]
        for choice in chosen.choices:
            assert [line for line in said if line.startswith(f"{choice.name} = {choice.value} ")]
            assert found[choice.name] == {"value": choice.value, "why": choice.why}
        assert any("/internal/state" in line for line in said)
        await platform.server.stop(0)
        status, body, headers = await get(platform, "/readyz")
        assert (status, json.loads(body)["reason"]) == (503, "DRAINING")
        assert int(headers["retry-after"]) >= 1
        assert (await get(platform, "/healthz"))[0] == 200

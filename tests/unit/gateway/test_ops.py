"""The operators' port as a guest in a running loop."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from typing import Any

import pytest

from lorry.config import OpsConfig
from lorry.errors import EngineUnavailable, LorryError, Unavailable
from lorry.gateway.ops import OpsServer


async def get(url: str) -> tuple[int, str, dict[str, str]]:
    def fetch() -> tuple[int, str, dict[str, str]]:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), dict(error.headers)

    return await asyncio.to_thread(fetch)


async def test_ready_follows_what_it_is_told_and_signals_stay_the_hosts() -> None:
    why: list[LorryError] = [EngineUnavailable("it loads", retry_after_s=2.4)]

    async def ready() -> None:
        for error in why:
            raise error

    async def state() -> dict[str, Any]:
        return {"big": list(range(10_000))}

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ops = OpsServer(OpsConfig(port=0), ready, state)
    ops.start()
    try:
        status, body, headers = await get(f"{ops.address}/readyz")
        assert (status, json.loads(body)["reason"], headers["retry-after"]) == (503, "ENGINE_UNAVAILABLE", "2")
        why.clear()
        assert (await get(f"{ops.address}/readyz"))[:2] == (200, "ready")
        assert (await get(f"{ops.address}/healthz"))[:2] == (200, "ok")
        status, body, _ = await get(f"{ops.address}/internal/state")
        assert status == 200
        assert len(body) < 4096
        assert {number: signal.getsignal(number) for number in before} == before
        with pytest.raises(Unavailable, match=f"{ops.port} cannot be bound"):
            OpsServer(OpsConfig(port=ops.port), ready, state)
    finally:
        await ops.stop()
    await ops.stop()
    with pytest.raises(urllib.error.URLError):
        await get(f"{ops.address}/healthz")

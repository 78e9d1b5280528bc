"""A gateway that goes down: what runs may end, unless somebody is in a hurry."""

from __future__ import annotations

import asyncio
import json

import pytest

from lorry.engine.fake import Fault, FaultKind
from lorry.errors import Draining, LorryError
from tests.integration.gateway.world import read, request, until, world


async def test_a_hurry_ends_a_drain_at_once() -> None:
    async with world() as here:
        here.engine.fault = lambda wanted: Fault(FaultKind.HANG, 3)
        running = asyncio.create_task(read(here.call(request())))
        await until(lambda: len(here.gateway.live) == 1)
        stopping = asyncio.create_task(here.gateway.stop(60.0))
        await asyncio.sleep(0)
        with pytest.raises(Draining) as caught:
            await here.gateway.ready()
        assert caught.value.retry_after_s
        done, _ = await asyncio.wait([stopping], timeout=0.1)
        assert not done, "it waits for what runs"
        assert here.gateway.state()["draining"] is True
        here.gateway.hurry()
        async with asyncio.timeout(5):
            await stopping
        _, error = await running
        assert isinstance(error, LorryError), "cut, and told so"


async def test_the_state_counts_and_shows_no_key() -> None:
    async with world() as here:
        here.engine.fault = lambda wanted: Fault(FaultKind.HANG, 3)
        calls = [asyncio.create_task(read(here.call(request()))) for _ in range(70)]
        await until(lambda: len(here.gateway.live) == 70)
        state = here.gateway.state()
        assert (state["live_calls"], len(state["calls"])) == (70, 64)
        assert state["calls"][0]["adapter"] == "tenants/acme/adapters/pirate"
        assert state["counters"]["inflight"] == 70
        assert not [key for key in here.keys.values() if key in json.dumps(state)]
        here.engine.die()
        for _, error in await asyncio.gather(*calls):
            assert error is not None
        assert here.gateway.state()["counters"]["outcomes"] == {"ENGINE_UNAVAILABLE": 70}

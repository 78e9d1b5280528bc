"""A gateway whose process stood still asks the registry before it judges how old its snapshot is."""

from __future__ import annotations

import asyncio
import time

from lorry import errors
from lorry.engine.fake import Fault, FaultKind
from lorry.registry.source import POLL_TIMEOUT_S
from tests.integration.registry_gateway.test_paused import POLL_S, STALE_S, TIMEOUT_S, is_unavailable
from tests.integration.registry_gateway.world import ended, hang, world
from tests.support.pausing import paused

STILL_S = 2.4
"""By more than ``LATE_S`` longer than any poll, and than what is too old."""


def stand_still(seconds: float = STILL_S) -> None:
    """As a process that was stopped, or whose machine was: its event loop does not turn."""
    time.sleep(seconds)


async def test_who_comes_then_is_served_and_who_is_served_goes_on(url: str) -> None:
    async with world(url, POLL_S, poll_timeout=TIMEOUT_S, staleness="strict", staleness_seconds=STALE_S) as here:
        customer = await here.customer("anna")
        await here.caught_up()
        here.engine.fault = lambda request: Fault(FaultKind.LATE, 2)
        call = await here.begun(customer)
        stand_still()
        assert await here.look(customer) is None
        here.engine.release.set()
        assert await ended(call) is None
        assert here.gateway.counters.cut_streams == 0


async def test_what_was_taken_back_meanwhile_is_known_to_the_first_call(url: str) -> None:
    async with world(url, POLL_S, poll_timeout=TIMEOUT_S, staleness="strict", staleness_seconds=STALE_S) as here:
        hang(here.engine)
        customer = await here.customer("anna")
        await here.caught_up()
        call = await here.begun(customer)
        await here.registry.keys.revoke(here.admin, "anna", customer.key_id)
        with paused(url):
            stand_still()
            first = asyncio.create_task(here.look(customer))
            await asyncio.sleep(0.2)  # it has come, before the registry answers
            assert not first.done()
        assert type(await first) is errors.Unauthenticated
        assert type(await ended(call)) is errors.Unauthenticated


async def test_a_poll_that_was_under_way_goes_on(url: str) -> None:
    async with world(url, POLL_S, poll_timeout=TIMEOUT_S, staleness="strict", staleness_seconds=STALE_S) as here:
        customer = await here.customer("anna")
        await here.caught_up()
        polling = asyncio.create_task(here.source.refresh())
        for _ in range(3):
            await asyncio.sleep(0)  # it has begun
        stand_still()
        await polling
        assert await here.look(customer) is None


async def test_a_registry_that_is_silent_then_is_found_out(url: str) -> None:
    """No longer than a second is waited for it, though a poll may take longer, and strict ends what runs."""
    async with world(url, POLL_S, staleness="strict", staleness_seconds=STALE_S) as here:
        hang(here.engine)
        customer = await here.customer("anna")
        await here.caught_up()
        call = await here.begun(customer)
        with paused(url):
            stand_still(STILL_S + POLL_TIMEOUT_S - TIMEOUT_S)
            began = time.monotonic()
            assert is_unavailable(await here.look(customer))
            assert is_unavailable(await ended(call))
            assert time.monotonic() - began < 3.0

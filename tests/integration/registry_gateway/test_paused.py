"""A registry that does not answer: strict fails closed, available goes on for a while, both recover by themselves."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from lorry import errors
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import LorryError
from tests.integration.registry_gateway.world import Customer, World, ended, hang, world
from tests.support.pausing import paused
from tests.support.waiting import until

POLL_S = 0.1
TIMEOUT_S = 1.5
STALE_S = 2.0
"""Longer than a poll, shorter than the deployment's own, so that the tests are."""
SLACK_S = 3.0


async def stale(here: World, seconds: float = STALE_S) -> None:
    await until(lambda: here.source.age() >= seconds)


def is_unavailable(error: LorryError | None) -> bool:
    """With the time after which to try again."""
    return type(error) is errors.Unavailable and error.retry_after_s == 1.0 and "registry" in error.message


async def recovers(here: World, customer: Customer) -> None:
    async with asyncio.timeout(15):
        while await here.look(customer) is not None:
            await asyncio.sleep(0.05)


async def test_strict_fails_closed_and_recovers(url: str) -> None:
    async with world(url, POLL_S, poll_timeout=TIMEOUT_S, staleness="strict", staleness_seconds=STALE_S) as here:
        hang(here.engine)
        customer = await here.customer("anna")
        await here.caught_up()
        call = await here.begun(customer)
        with paused(url):
            began = time.monotonic()
            assert await here.look(customer) is None, "what is a moment old is as good as new"
            error = await ended(call)
            assert is_unavailable(error), error
            assert STALE_S - 2 * POLL_S <= time.monotonic() - began < STALE_S + SLACK_S
            assert is_unavailable(await here.look(customer))
            refused = here.stream(customer)
            assert is_unavailable(await ended(refused))
        await recovers(here, customer)
        (await here.begun(customer)).cancel()
        assert here.source.full_loads == 1


async def test_what_was_taken_back_while_it_was_silent_is_known_with_the_first_answer(url: str) -> None:
    """Nothing is served between the silence and the news."""
    async with world(url, POLL_S, poll_timeout=TIMEOUT_S, staleness="strict", staleness_seconds=STALE_S) as here:
        customer = await here.customer("anna")
        await here.caught_up()
        with paused(url):
            revoking = asyncio.create_task(here.registry.keys.revoke(here.admin, "anna", customer.key_id))
            await stale(here)
            assert is_unavailable(await here.look(customer))
        await asyncio.wait({revoking})
        for _ in range(100):  # the revocation may itself have been given up by a driver that waited too long
            if revoking.exception() is None:
                break
            revoking = asyncio.create_task(here.registry.keys.revoke(here.admin, "anna", customer.key_id))
            await asyncio.wait({revoking})
        await here.caught_up()
        async with asyncio.timeout(15):
            while is_unavailable(error := await here.look(customer)):  # the poll that told it may itself be old
                await asyncio.sleep(0.05)
        assert type(error) is errors.Unauthenticated


async def test_available_goes_on_with_streams_and_refuses_new_calls_later(url: str) -> None:
    async with world(url, POLL_S, poll_timeout=TIMEOUT_S, staleness="available", staleness_seconds=STALE_S) as here:
        customer = await here.customer("anna")
        await here.caught_up()
        here.engine.fault = lambda request: Fault(FaultKind.LATE, 2)
        call = await here.begun(customer)
        with paused(url):
            assert await here.look(customer) is None
            await stale(here)
            assert is_unavailable(await here.look(customer))
            await stale(here, STALE_S + 0.5)
            assert here.gateway.counters.cut_streams == 0
            here.engine.release.set()
            assert await ended(call) is None, "a stream that runs ends well"
        await recovers(here, customer)


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("policy", ["strict", "available"])
async def test_at_the_deployments_own_times(url: str, policy: Any) -> None:
    """Strict: from five seconds on. Available: far from its five minutes nothing happens."""
    async with world(url, staleness=policy) as here:
        hang(here.engine)
        customer = await here.customer("anna")
        await here.caught_up()
        call = await here.begun(customer)
        with paused(url):
            began = time.monotonic()
            if policy == "strict":
                assert is_unavailable(await ended(call))
                assert 3.5 <= time.monotonic() - began <= 6.5
                assert is_unavailable(await here.look(customer))
            else:
                await stale(here, 10.0)
                assert await here.look(customer) is None
                assert len(here.gateway.live) == 1
        await recovers(here, customer)
        call.cancel()

"""A gateway's tokens before a real registry: taken ahead, given back, refused in time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lorry import errors
from lorry.gateway.limits.quotas import LiveQuota
from lorry.gateway.limits.tokens import AHEAD_SHARE, Reservation
from lorry.gateway.limits.upkeep import DRY_S, RENEW_S
from lorry.ids import TenantId
from lorry.registry.entries import QuotaEntry
from lorry.registry.leases.terms import CLOCKS_S, LEASE_S
from tests.support.waiting import end
from tests.unit.gateway.limits.bank import Bank, Gateway
from tests.unit.registry.conftest import World

LIMIT = 10_000


@pytest.fixture
async def bank(world: World) -> Bank:
    return await Bank.of(world.registry, world.admin, "anna", LIMIT)


async def reserve(gateway: Gateway, tokens: int) -> list[Reservation] | None:
    """With a round trip where it needs one."""
    if found := gateway.tokens.reserve([gateway.budget], tokens):
        return found
    waits = asyncio.create_task(gateway.tokens.wait([gateway.budget], tokens, 30.0))
    await asyncio.sleep(0)
    await gateway.tokens.round(renewing=False)
    return await waits


def bill(gateway: Gateway, found: list[Reservation] | None, used: int) -> None:
    assert found is not None
    (one,) = found
    one.settle(used)
    gateway.spool.append(gateway.bank.row(used, (one.charge,)))


async def test_a_busy_tenant_needs_few_round_trips(bank: Bank) -> None:
    gateway = bank.gateway(LIMIT)
    waited = 0
    for _ in range(300):
        if (found := gateway.tokens.reserve([gateway.budget], 20)) is None:
            waited += 1
            found = await reserve(gateway, 20)
        bill(gateway, found, 10)
        bank.now += 0.02
        if gateway.tokens._due:
            await gateway.tokens.round(renewing=False)
    assert waited == 1
    assert gateway.line.calls < 60
    await gateway.drain()
    assert await bank.known() == {"2026-11": 3000}


async def test_what_is_taken_ahead_is_a_small_share_of_the_month(bank: Bank) -> None:
    gateway = bank.gateway(LIMIT)
    found = await reserve(gateway, 5000)
    assert await bank.outstanding() <= 5000 + LIMIT // AHEAD_SHARE
    await gateway.tokens.round(renewing=False)
    assert await bank.outstanding() <= 5000 + LIMIT // AHEAD_SHARE
    bill(gateway, found, 1)
    await gateway.tokens.round(renewing=True)
    assert await bank.outstanding() <= 1 + LIMIT // AHEAD_SHARE


async def test_an_idle_gateway_holds_nothing(bank: Bank) -> None:
    gateway = bank.gateway(LIMIT)
    bill(gateway, await reserve(gateway, 500), 100)
    await gateway.drain()
    for _ in range(20):
        bank.now += RENEW_S
        await gateway.tokens.round(renewing=True)
    assert gateway.budget.idle()
    assert await bank.outstanding() == 0
    assert await bank.known() == {"2026-11": 100}


async def test_what_is_given_back_is_not_used_while_the_registry_is_told(bank: Bank) -> None:
    gateway, other = bank.gateway(LIMIT), bank.gateway(LIMIT)
    bill(gateway, await reserve(gateway, LIMIT), 0)
    giving = asyncio.create_task(gateway.tokens.round(renewing=True))
    await asyncio.sleep(0)
    kept = gateway.tokens.reserve([gateway.budget], LIMIT)
    await giving
    assert kept is None
    assert await reserve(other, LIMIT - LIMIT // AHEAD_SHARE) is not None
    assert gateway.tokens.reserve([gateway.budget], LIMIT // AHEAD_SHARE + 1) is None


async def test_spent_and_held_are_told_apart(bank: Bank) -> None:
    gateway, other = bank.gateway(LIMIT), bank.gateway(LIMIT)
    entry = QuotaEntry(bank.quota_id, TenantId("t"), "", None, None, None, LIMIT, None, 1)
    quota = LiveQuota(entry, bank.now)
    quota.budget = gateway.budget
    held = await reserve(other, 9000)
    assert await reserve(gateway, 2000) is None
    quota.check_tokens(1000, bank.now)  # so many are free
    with pytest.raises(errors.QuotaExceeded) as exceeded:
        quota.check_tokens(2000, bank.now)
    assert exceeded.value.retry_after_s
    quota.check_tokens(2000, bank.now + DRY_S)  # it is worth asking again
    bill(other, held, 9000)
    await other.drain()
    assert await reserve(gateway, 2000) is None
    with pytest.raises(errors.TokenBudgetSpent) as spent:
        quota.check_tokens(2000, bank.now)
    assert (spent.value.retry_after_s, spent.value.metadata["unspent"]) == (None, "1000")
    quota.check_tokens(1000, bank.now)
    bill(gateway, await reserve(gateway, 1000), 1000)  # not in the ledger yet
    assert await reserve(gateway, 1) is None
    with pytest.raises(errors.TokenBudgetSpent):
        quota.check_tokens(1, bank.now)


async def test_two_gateways_do_not_keep_halves_of_what_one_request_needs(bank: Bank) -> None:
    one, two = bank.gateway(LIMIT), bank.gateway(LIMIT)
    held = []
    for gateway, tokens in ((one, 4000), (two, 5000), (one, 600), (two, 400)):
        held.append(await reserve(gateway, tokens))
        gateway.budget._taken = 0  # so that nothing is taken ahead
    assert await bank.outstanding() == LIMIT
    bill(one, held[2], 0)
    bill(two, held[3], 0)
    for gateway in (one, two, one):
        if await reserve(gateway, 1000):
            return
    raise AssertionError("1000 tokens are free, and nobody gets them")


async def test_those_that_wait_are_served_in_turn_by_one_round_trip(bank: Bank) -> None:
    gateway = bank.gateway(LIMIT)
    wanted = (6000, 5000, 4000)
    waits = [asyncio.create_task(gateway.tokens.wait([gateway.budget], tokens, 30.0)) for tokens in wanted]
    await asyncio.sleep(0)
    await gateway.tokens.round(renewing=False)
    found = await asyncio.gather(*waits)
    assert [one is not None for one in found] == [True, False, True]
    assert gateway.line.calls == 1
    assert gateway.budget.pending == []


async def test_who_leaves_while_it_waits_leaves_nothing(bank: Bank) -> None:
    gateway = bank.gateway(LIMIT)
    waits = asyncio.create_task(gateway.tokens.wait([gateway.budget], LIMIT, 30.0))
    await asyncio.sleep(0)
    await end(waits)
    assert gateway.budget.pending == []
    waits = asyncio.create_task(gateway.tokens.wait([gateway.budget], LIMIT, 30.0))
    await asyncio.sleep(0)
    await gateway.tokens.round(renewing=False)
    waits.cancel()  # it has its tokens, and does not know
    await asyncio.gather(waits, return_exceptions=True)
    assert waits.cancelled()
    assert gateway.tokens.reserve([gateway.budget], LIMIT) is not None


@pytest.mark.parametrize("lost", ["before", "after"])
async def test_without_the_registry_a_lease_is_used_until_it_ends(
    bank: Bank, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    gateway, other = bank.gateway(LIMIT), bank.gateway(LIMIT)
    bill(gateway, await reserve(gateway, 400), 0)
    gateway.line.lost = lost
    assert gateway.tokens.reserve([gateway.budget], 100) is not None
    bank.now += LEASE_S
    assert gateway.tokens.reserve([gateway.budget], 1) is None  # nobody vouches for it any more
    bank.now += CLOCKS_S
    found = await reserve(other, LIMIT)
    assert found is not None
    with pytest.raises(errors.Unavailable):
        await reserve(gateway, 1)
    gateway.line.lost = None
    assert await reserve(gateway, 1) is None
    bill(other, found, 0)
    other.budget._taken = 0
    await other.tokens.round(renewing=True)
    assert await reserve(gateway, 1) is not None


async def test_nobody_waits_for_ever(bank: Bank) -> None:
    gateway = bank.gateway(LIMIT)
    with pytest.raises(errors.Unavailable):
        await gateway.tokens.wait([gateway.budget], 1, 0.01)
    assert gateway.budget.pending == []
    assert gateway.tokens._waiters == []


async def test_a_new_month_has_its_own_tokens(bank: Bank) -> None:
    gateway = bank.gateway(LIMIT)
    running = await reserve(gateway, LIMIT)
    assert await reserve(gateway, 1) is None
    bank.now += 31 * 86400.0
    again = await reserve(gateway, LIMIT)
    bill(gateway, running, 4000)
    bill(gateway, again, 5000)
    await gateway.drain()
    await gateway.tokens.round(renewing=True)
    assert await bank.known() == {"2026-11": 4000, "2026-12": 5000}


async def test_a_gateway_that_ends_gives_everything_back(bank: Bank) -> None:
    gateway = bank.gateway(LIMIT)
    bill(gateway, await reserve(gateway, LIMIT), 100)
    await gateway.drain()
    await gateway.tokens.close()
    assert await bank.outstanding() == 0
    assert await bank.known() == {"2026-11": 100}


async def test_run_renews_by_itself(bank: Bank) -> None:
    gateway = bank.gateway(LIMIT)
    running = asyncio.create_task(gateway.tokens.run())
    try:
        async with asyncio.timeout(20):
            assert await gateway.tokens.wait([gateway.budget], 100, 10.0) is not None
            assert await bank.outstanding() >= 100
            calls = gateway.line.calls
            bank.now += RENEW_S  # the loop looks when it is woken
            gateway.tokens._wake.set()
            while gateway.line.calls == calls:
                await asyncio.sleep(0.01)
    finally:
        await end(running)

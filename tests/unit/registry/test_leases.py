"""Leases of a month's tokens: what is granted, what comes back, and what the ledger makes of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from lorry.registry import Caller, PageRequest
from lorry.registry.leases.months import bounds_of, month_of
from lorry.registry.leases.service import LeaseService
from lorry.registry.leases.terms import CLOCKS_S, LEASE_S, Charge, LeaseAnswer, LeaseAsk, Standing
from lorry.registry.limits.bounds import LimitValues
from lorry.registry.limits.service import QuotaService
from tests.unit.registry.conftest import World
from tests.unit.registry.usages import NOON, usage

NOV = "2026-11"
ALL = PageRequest.of(0, "")


class Bank:
    """A tenant with 1000 tokens a month, and a clock."""

    def __init__(self, world: World, tenant: Caller, quota_id: str) -> None:
        self.world, self.tenant, self.quota_id = world, tenant, quota_id
        self.now = NOON.timestamp()
        self.leases = LeaseService(world.registry.database, lambda: self.now)
        self.quotas = QuotaService(world.registry.database, lambda: self.now)
        self.rows = 0

    @classmethod
    async def of(cls, world: World, limit: int = 1000) -> Bank:
        await world.registry.tenants.create(world.admin, "anna")
        found = await world.registry.quotas.set(world.admin, "anna", None, LimitValues(tokens_per_month=limit))
        return cls(world, await world.caller("anna"), found.row.id)

    async def take(
        self,
        lease: str,
        wanted: int,
        *,
        fresh: bool = False,
        kept: int = 0,
        least: int = 0,
        used: int = 0,
        month: str = NOV,
    ) -> LeaseAnswer:
        ask = LeaseAsk(self.quota_id, month, lease, fresh, used, kept, least, wanted)
        (answer,) = await self.leases.take("gw", [ask])
        return answer

    async def bill(self, lease: str, tokens: int, month: str = NOV, ledger_id: str = "", **fields: Any) -> None:
        self.rows += 1
        row = usage(
            self.tenant.tenant,
            self.rows,
            prompt_tokens=tokens,
            output_tokens=0,
            charges=(Charge(self.quota_id, month, lease),),
            **({"ledger_id": ledger_id} if ledger_id else {}),
            **fields,
        )
        await self.world.registry.usage.write([row])

    async def use(self) -> tuple[int, int]:
        (view,) = (await self.quotas.list(self.world.admin, "anna", ALL)).rows
        assert view.use is not None
        return view.use.used, view.use.leased

    async def limit(self, **limits: int) -> None:
        await self.quotas.set(self.world.admin, "anna", None, LimitValues(**limits))


def test_months() -> None:
    assert month_of(NOON.timestamp()) == NOV
    assert bounds_of("2026-12") == (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
    start, end = bounds_of(NOV)
    assert month_of(start.timestamp()) == NOV
    assert month_of(start.timestamp() - 1e-3) == "2026-10"
    assert month_of(end.timestamp() - 1e-3) == NOV
    assert month_of(end.timestamp()) == "2026-12"


async def test_what_is_granted_is_what_is_free(world: World) -> None:
    bank = await Bank.of(world)
    assert await bank.take("a", 700, fresh=True) == LeaseAnswer("a", Standing.HELD, 700, 300, 1000)
    assert await bank.take("b", 700, fresh=True) == LeaseAnswer("b", Standing.HELD, 300, 0, 1000)
    assert await bank.take("c", 1, fresh=True) == LeaseAnswer("c", Standing.HELD, 0, 0, 1000)
    assert await bank.use() == (0, 1000)
    assert (await bank.take("a", 500, kept=500)).granted == 500  # gives 200 back
    assert (await bank.take("b", 900, kept=300)).granted == 500
    assert (await bank.take("c", 1, fresh=True)).granted == 0
    assert await bank.use() == (0, 1000)


async def test_less_than_is_of_use_is_left_to_others(world: World) -> None:
    bank = await Bank.of(world)
    await bank.take("a", 700, fresh=True)
    assert (await bank.take("b", 400, fresh=True, least=301)).granted == 0
    assert (await bank.take("b", 400, fresh=True, least=300)).granted == 300
    assert (await bank.take("a", 900, kept=600, least=701)).granted == 600
    assert await bank.use() == (0, 900)


async def test_asking_again_grants_once(world: World) -> None:
    bank = await Bank.of(world)
    for _ in range(3):
        assert (await bank.take("a", 700, fresh=True)).granted == 700
    assert await bank.use() == (0, 700)


async def test_a_bill_moves_from_the_lease_to_what_is_used(world: World) -> None:
    bank = await Bank.of(world)
    await bank.take("a", 700, fresh=True)
    await bank.bill("a", 200, ledger_id="us_1")
    assert await bank.use() == (200, 500)
    await bank.bill("a", 200, ledger_id="us_1")  # the same row again
    assert await bank.use() == (200, 500)
    row = usage(bank.tenant.tenant, 1, ledger_id="us_1", prompt_tokens=200, charges=(Charge(bank.quota_id, NOV, "a"),))
    await world.registry.usage.write([row, replace(row, ledger_id="us_2", prompt_tokens=1, output_tokens=0)])
    assert await bank.use() == (201, 499)
    await bank.bill("a", 9)
    answer = await bank.take("b", 1000, fresh=True)
    assert (answer.granted, answer.unspent) == (300, 790)
    answer = await bank.take("a", 700, kept=700, used=350)  # another 150 are in the gateway's spool
    assert (answer.granted, answer.unspent) == (700, 650)


async def test_a_dead_gateways_lease_comes_back_but_for_what_it_spent(world: World) -> None:
    bank = await Bank.of(world)
    await bank.take("a", 700, fresh=True)
    await bank.bill("a", 200)
    bank.now += LEASE_S + CLOCKS_S - 0.1
    assert (await bank.take("b", 1000, fresh=True)).granted == 300
    assert await bank.use() == (200, 800)
    bank.now += 0.2
    assert (await bank.take("b", 1000, kept=300)).granted == 800
    assert await bank.use() == (200, 800)
    await bank.bill("a", 100)  # out of its spool, when it starts again
    assert await bank.use() == (300, 800)
    assert await bank.take("a", 700, kept=700) == LeaseAnswer("a", Standing.GONE)


async def test_settling_gives_back_what_is_unused(world: World) -> None:
    bank = await Bank.of(world)
    await bank.take("a", 700, fresh=True)
    await bank.bill("a", 200)
    for _ in range(2):
        await bank.leases.settle({"a": 200, "unknown": 5})
        assert await bank.use() == (200, 0)
    assert (await bank.take("a", 1, kept=1)).standing is Standing.GONE


async def test_what_the_ledger_lacks_yet_is_kept_when_a_lease_is_settled(world: World) -> None:
    bank = await Bank.of(world)
    await bank.take("a", 700, fresh=True)
    await bank.bill("a", 200)
    await bank.leases.settle({"a": 300})
    assert await bank.use() == (200, 100)
    assert (await bank.take("b", 1000, fresh=True)).granted == 700
    await bank.bill("a", 100)
    assert await bank.use() == (300, 700)
    bank.now += LEASE_S + CLOCKS_S
    assert await bank.use() == (300, 0)


async def test_a_lower_limit_takes_nothing_back_and_grants_nothing(world: World) -> None:
    bank = await Bank.of(world)
    await bank.take("a", 700, fresh=True)
    await bank.limit(tokens_per_month=100)
    assert await bank.take("a", 900, kept=700) == LeaseAnswer("a", Standing.HELD, 700, 0, 100)
    assert (await bank.take("b", 1, fresh=True)).granted == 0
    await bank.limit(tokens_per_month=701)
    assert (await bank.take("b", 5, fresh=True)).granted == 1


async def test_months_are_apart(world: World) -> None:
    bank = await Bank.of(world)
    assert (await bank.take("a", 1000, fresh=True)).granted == 1000
    bank.now = bounds_of(NOV)[1].timestamp()
    assert (await bank.take("b", 1000, fresh=True, month="2026-12")).granted == 1000
    await bank.bill("a", 400)  # of a request that began in November
    assert await bank.use() == (0, 1000)


async def test_a_month_begins_with_what_the_ledger_has_of_it(world: World) -> None:
    bank = await Bank.of(world)
    await bank.bill("nobody's", 100)
    await bank.bill("nobody's", 50, started_at=bounds_of(NOV)[0].replace(month=10))
    answer = await bank.take("a", 1000, fresh=True)
    assert (answer.granted, answer.unspent) == (900, 900)


@pytest.mark.parametrize("gone", ["deleted", "without tokens"])
async def test_a_quota_that_limits_no_tokens_any_more(world: World, gone: str) -> None:
    bank = await Bank.of(world)
    await bank.take("a", 700, fresh=True)
    await bank.bill("a", 100)
    if gone == "deleted":
        await bank.quotas.delete(world.admin, "anna", bank.quota_id)
    else:
        await bank.limit(concurrency=5)
    assert (await bank.take("a", 700, kept=700)).standing is Standing.UNLIMITED
    await bank.bill("a", 50)  # of a request that it had let in
    await bank.leases.settle({"a": 150})
    old = bank.quota_id
    again = await bank.quotas.set(world.admin, "anna", None, LimitValues(tokens_per_month=1000))
    bank.quota_id = again.row.id
    assert await bank.use() == (150, 0)
    assert (await bank.take("b", 1000, fresh=True)).granted == 850
    bank.quota_id = old
    await bank.bill("a", 25)  # of one that still runs: charged where its quota is still there
    assert await bank.use() == (175 if gone == "without tokens" else 150, 850)


async def test_takers_at_once_share_what_is_there(world: World) -> None:
    bank = await Bank.of(world)

    async def live(name: str) -> int:
        granted = (await bank.take(name, 70, fresh=True)).granted
        for turn in range(3):
            if granted:
                await bank.bill(name, 5, ledger_id=f"us_{name}_{turn}")
                granted = (await bank.take(name, granted, kept=granted)).granted
        return granted

    granted = await asyncio.gather(*(live(f"l{i}") for i in range(20)))
    assert sum(granted) == 1000
    spent = sum(15 for one in granted if one)
    assert await bank.use() == (spent, 1000 - spent)

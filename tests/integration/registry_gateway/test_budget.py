"""Two gateways on one registry share a month's tokens, over the wire, with spools and ledgers of their own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2_grpc
from lorry.config import GatewayConfig
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import AdapterLoadFailed, LorryError, QuotaExceeded, TokenBudgetSpent
from lorry.gateway import EngineRoutes, GatewayServer, LedgerDrain, UsageSpool, build_server
from lorry.gateway.limits import Limits
from lorry.ids import TenantId
from lorry.registry import PageRequest, Registry
from lorry.registry.authz import verify_tenant
from lorry.registry.leases.service import LeaseService
from lorry.registry.leases.terms import CLOCKS_S, LEASE_S
from lorry.registry.limits.bounds import LimitValues
from lorry.registry.limits.service import QuotaService
from lorry.registry.names import parse_adapter
from tests.integration.registry_gateway.world import Customer, World, ended, world
from tests.support.waiting import end, until
from tests.unit.engine_contract.fakes import fake_engine
from tests.unit.registry.conftest import PEPPERS

ALL = PageRequest.of(0, "")
PROMPT, OUTPUT = 5, 8


@dataclass
class Clock:
    """The gateways' and the registry's, ahead of the world's."""

    ahead: float = 0.0

    def now(self) -> float:
        return time.time() + self.ahead

    def steady(self) -> float:
        return time.monotonic() + self.ahead


@dataclass
class Other:
    """A whole gateway of its own: registry, snapshot, spool, leases."""

    server: GatewayServer
    limits: Limits
    drain: LedgerDrain
    usage: UsageSpool
    registry: Registry
    stub: Any
    channel: grpc.aio.Channel
    engine: Any
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def ask(self, customer: Customer, world: World) -> LorryError | None:
        real, world.stub = world.stub, self.stub
        try:
            call = world.stream(customer)
        finally:
            world.stub = real
        try:
            async with asyncio.timeout(30):
                await call.read()
        except grpc.RpcError as error:
            return error_from_rpc(error)
        return await ended(call)

    async def die(self) -> None:
        """As by kill -9: nothing is settled, nothing more is written; what the spool has lies on the disk."""
        await end(*self.tasks)
        for task in self.server._tasks:
            task.cancel()
        await asyncio.gather(*self.server._tasks, return_exceptions=True)
        await self.server._server.stop(0)

    async def close(self) -> None:
        await self.channel.close(None)
        await self.server.stop(grace=0)
        await self.usage.close()
        await end(*self.tasks)
        await self.drain.drain()
        await self.limits.close()
        await self.registry.close()


@asynccontextmanager
async def gateway(url: str, spool: Path, clock: Clock) -> AsyncIterator[Other]:
    registry = Registry(url, PEPPERS)
    source = registry.snapshots()
    await source.start()
    engine = fake_engine()
    limits = Limits(source, LeaseService(registry.database, clock.now), clock.now, clock.steady)
    usage = UsageSpool(spool)
    server = build_server(
        GatewayConfig(port=0), source, EngineRoutes([engine]), usage, kv_salt=bytes(32), now=clock.now, limits=limits
    )
    await server.start()
    drain = LedgerDrain(spool, registry.usage)
    channel = grpc.aio.insecure_channel(server.address)
    stub = generate_pb2_grpc.GenerateServiceStub(channel)
    made = Other(server, limits, drain, usage, registry, stub, channel, engine)
    made.tasks = [asyncio.create_task(source.run()), asyncio.create_task(drain.run(0.05))]
    try:
        yield made
    finally:
        await made.close()


async def limited(here: World, customer: Customer, limit: int, adapter: str = "") -> None:
    name = parse_adapter("adapter", adapter) if adapter else None
    await here.registry.quotas.set(here.admin, customer.name, name, LimitValues(tokens_per_month=limit))


async def use(here: World, customer: Customer, clock: Clock) -> list[tuple[int, int]]:
    quotas = QuotaService(here.registry.database, clock.now)
    found = (await quotas.list(here.admin, customer.name, ALL)).rows
    return [(view.use.used, view.use.leased) for view in found if view.use is not None]


async def spend(here: World, customer: Customer, gateways: list[Other], tries: int) -> Counter[str]:
    """Four clients at a time at each gateway."""
    seen: Counter[str] = Counter()

    async def client(one: Other) -> None:
        for _ in range(tries):
            error = await one.ask(customer, here)
            seen["OK" if error is None else error.reason] += 1
            if isinstance(error, QuotaExceeded):
                await asyncio.sleep(0.02)

    await asyncio.gather(*(client(one) for one in gateways for _ in range(4)))
    return seen


async def test_two_gateways_never_use_more_than_a_month_has(url: str, tmp_path: Path) -> None:
    clock, limit = Clock(), 40 * (PROMPT + OUTPUT) + 3
    async with world(url) as here:
        customer = await here.customer("anna")
        await limited(here, customer, limit)
        await limited(here, customer, 10 * limit, customer.model)
        async with gateway(url, tmp_path / "a", clock) as one, gateway(url, tmp_path / "b", clock) as two:
            async with asyncio.timeout(60):
                seen = await spend(here, customer, [one, two], 10)
                while seen["OK"] < 40:  # what the other one holds comes back
                    clock.ahead += 2.0
                    seen += await spend(here, customer, [one, two], 1)
            assert set(seen) <= {"OK", "QUOTA_EXCEEDED", "TOKEN_BUDGET_SPENT"}
            assert seen["OK"] == 40
            while True:
                error = await two.ask(customer, here)
                if not isinstance(error, QuotaExceeded):
                    break
                clock.ahead += 2.0
            assert isinstance(error, TokenBudgetSpent)
            assert error.metadata["unspent"] == "3"
            total = 40 * (PROMPT + OUTPUT)
        assert await use(here, customer, clock) == [(total, 0), (total, 0)]
        assert await ledger(here, customer) == total


async def test_a_killed_gateways_tokens_come_back_and_its_bills_count(url: str, tmp_path: Path) -> None:
    clock, limit = Clock(), 1000
    async with world(url) as here:
        customer = await here.customer("anna")
        await limited(here, customer, limit)
        async with gateway(url, tmp_path / "b", clock) as two, gateway(url, tmp_path / "a", clock) as one:
            one.tasks[1].cancel()  # its spool does not reach the ledger
            await asyncio.gather(one.tasks[1], return_exceptions=True)
            for _ in range(3):
                assert await one.ask(customer, here) is None
            one.engine.fault = lambda r: Fault(FaultKind.HANG, 2)
            hung = [asyncio.create_task(one.ask(customer, here)) for _ in range(5)]
            await until(lambda: len(one.server.live) == 5)
            (before,) = await use(here, customer, clock)
            assert before[0] == 0
            assert before[1] >= 8 * (PROMPT + OUTPUT)
            await one.die()
            await end(*hung)
            clock.ahead += LEASE_S + CLOCKS_S
            assert await two.ask(customer, here) is None
            await until(lambda: not two.server.live)
            await two.drain.drain()
            ((used, leased),) = await use(here, customer, clock)
            assert used == PROMPT + OUTPUT
            assert leased <= limit // 20
        # Closing the first one drained its spool, as its next start does.
        ((used, leased),) = await use(here, customer, clock)
        assert leased == 0
        assert used == (await ledger(here, customer))
        assert used >= 4 * (PROMPT + OUTPUT)


async def ledger(here: World, customer: Customer) -> int:
    tenant = TenantId((await here.registry.tenants.get(here.admin, customer.name)).id)
    _, prompts, outputs = await here.registry.usage.totals(verify_tenant(here.admin, tenant))
    return prompts + outputs


@pytest.mark.parametrize("change", ["lowered", "raised", "taken away"])
async def test_changed_limits_hold_without_a_restart(url: str, tmp_path: Path, change: str) -> None:
    clock = Clock()
    async with world(url) as here:
        customer = await here.customer("anna")
        await limited(here, customer, 3 * (PROMPT + OUTPUT) if change != "lowered" else 10_000)
        async with gateway(url, tmp_path / "a", clock) as one:
            for _ in range(3):
                assert await one.ask(customer, here) is None
            if change == "lowered":
                await limited(here, customer, 3 * (PROMPT + OUTPUT))
            else:
                assert isinstance(await one.ask(customer, here), TokenBudgetSpent)
                if change == "raised":
                    await limited(here, customer, 10_000)
                else:
                    (view,) = (await here.registry.quotas.list(here.admin, customer.name, ALL)).rows
                    await here.registry.quotas.delete(here.admin, customer.name, view.row.id)
            wanted = isinstance if change == "lowered" else (lambda error, _: error is None)
            async with asyncio.timeout(20):
                while not wanted(await one.ask(customer, here), TokenBudgetSpent):
                    clock.ahead += 1.0
                    await asyncio.sleep(0.05)


ENDS: dict[str, Fault | None] = {
    "well": None,
    "fails at once": Fault(FaultKind.FAIL, 0, AdapterLoadFailed("adapter: no")),
    "fails late": Fault(FaultKind.FAIL, 4, AdapterLoadFailed("adapter: no")),
    "lies at the end": Fault(FaultKind.PROVENANCE, -1, provenance={"adapter": "0" * 64}),
    "cancelled": Fault(FaultKind.HANG, 4),
    "cut": Fault(FaultKind.HANG, 4),
}


@pytest.mark.parametrize("how", ENDS)
async def test_however_a_request_ends_its_tokens_are_those_of_its_bill(url: str, tmp_path: Path, how: str) -> None:
    clock = Clock()
    async with world(url) as here:
        customer = await here.customer("anna")
        await limited(here, customer, 1000)
        async with gateway(url, tmp_path / "a", clock) as one:
            one.engine.fault = lambda r: ENDS[how]
            asking = asyncio.create_task(one.ask(customer, here))
            if how in ("cancelled", "cut"):
                await until(lambda: any(call.relay._started is not None for call in one.server.live))
                await asyncio.sleep(0.1)  # its first tokens are on their way
                if how == "cut":
                    await here.registry.grants.revoke(here.admin, customer.name, customer.grant_id)
                else:
                    asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await until(lambda: not one.server.live)
            (budget,) = one.limits.tokens.budgets.values()
            assert budget._lease is not None
            await until(lambda: budget._lease is not None and budget._lease.reserved == 0)
            used = budget._lease.used
            await one.usage.close()
            await one.drain.drain()
            assert await ledger(here, customer) == used
            assert (used == PROMPT + OUTPUT) == (how == "well")
            assert used == 0 or how != "fails at once"
            assert used or how not in ("well", "cut")
        assert await use(here, customer, clock) == [(used, 0)]

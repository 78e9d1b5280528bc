"""After a known load the metrics, the spool, the ledger in the database and its rollups give the same figures."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import LorryError
from lorry.gateway import LedgerDrain, UsageSpool, read_rows
from lorry.gateway.metrics import MetricPages, Target
from lorry.ids import TenantId
from lorry.registry.authz import Role, verify_tenant
from tests.integration.registry_gateway.world import Customer, World, ended, hang, world
from tests.support.scrapes import Scrape
from tests.support.waiting import until


async def whole(call: Any) -> LorryError | None:
    assert (await call.read()).HasField("start")
    return await ended(call)


async def begun(here: World, customer: Customer) -> Any:
    """A call of which some tokens have been handed out."""
    wanted = pb.GenerateRequest()
    wanted.output.token_ids = True
    call = here.stream(customer, output=wanted.output)
    async with asyncio.timeout(30):
        assert (await call.read()).HasField("start")
        assert (await call.read()).HasField("delta")
    return call


async def totals(here: World, customer: Customer) -> tuple[int, int, int]:
    """Requests, prompt and output tokens of its tenant in the ledger."""
    rows = here.source.current().tables.tenants.values()
    tenant = next(row.id for row in rows if row.name == customer.name)
    return await here.registry.usage.totals(verify_tenant(Who(tenant), tenant))


class Who:
    role = Role.OWNER

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant


async def test_metrics_are_the_ledger(url: str, tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path / "usage.jsonl")
    async with world(url, usage=spool) as here:
        pages = MetricPages(here.gateway.watched, [Target("engine-0", here.engine)], lag=here.source.lag)
        customers = [await here.customer(name) for name in ("anna", "bert", "cara")]
        await here.caught_up()
        for _ in range(5):
            asked = [here.stream(customer) for customer in customers]
            assert await asyncio.gather(*(whole(call) for call in asked)) == [None] * 3
        here.engine.fault = lambda request: Fault(FaultKind.HANG, 3)
        cut = await begun(here, customers[0])
        cut.cancel()
        hang(here.engine)
        revoked = await begun(here, customers[1])
        await here.registry.grants.revoke(here.admin, "bert", customers[1].grant_id)
        assert (await ended(revoked)) is not None
        await until(lambda: not len(here.gateway.live))
        found = Scrape.of((await pages.metrics())[0].decode())

        await LedgerDrain(tmp_path / "usage.jsonl", here.registry.usage).drain()
        by_tenant = {customer.name: await totals(here, customer) for customer in customers}
        requests, prompt, output = map(sum, zip(*by_tenant.values(), strict=True))
        assert requests == 17
        assert found.sum("lorry_gateway_billed_requests_total") == requests
        assert found.one("lorry_gateway_tokens_total", kind="prompt") == prompt
        assert found.one("lorry_gateway_tokens_total", kind="output") == output
        for name, (count, prompts, outputs) in by_tenant.items():
            assert found.one("lorry_tenant_requests_total", tenant=name) == count
            assert found.one("lorry_tenant_tokens_total", tenant=name, kind="prompt") == prompts
            assert found.one("lorry_tenant_tokens_total", tenant=name, kind="output") == outputs
        await spool.close()
        rows = {row.ledger_id: row for row in read_rows(tmp_path / "usage.jsonl")}
        outcomes = Counter(row.outcome for row in rows.values())
        assert found.by("lorry_gateway_billed_requests_total", "outcome") == outcomes
        assert outcomes == {"OK": 15, "CANCELLED": 1, "GRANT_REVOKED": 1}
        assert found.one("lorry_gateway_cut_streams_total") == 1
        assert found.one("lorry_gateway_revocation_lag_seconds_count") >= 1
        assert found.one("lorry_gateway_registry_epoch") == here.source.current().epoch

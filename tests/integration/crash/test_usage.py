"""Processes are killed at random moments under load of streams and of changes: what a client was told is in the ledger,
once, what an administrator was answered was done, once, and no change is there in part."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from lorry.registry import PageRequest, Registry
from lorry.registry.db.tables import Adapter, Quota, UsageEvent
from lorry.registry.leases import repository as leases
from lorry.registry.leases.months import month_of
from lorry.registry.leases.terms import CLOCKS_S, LEASE_S
from tests.integration.crash.checks import chains, equal, whole
from tests.integration.crash.gateway import TENANT
from tests.integration.crash.world import TENANTS, Check, Crashing, Victim, crashing
from tests.support.results import keep_result
from tests.unit.registry import postgres
from tests.unit.registry.usages import check_sums, kept

KILLS = 12
SOAK_KILLS = 50


async def no_quota_leaked(registry: Registry) -> None:
    """A month's tokens are those of the ledger, of each tenant and of its use of an adapter, and no lease of a killed
    gateway outlives its time."""
    rows, found = await kept(registry), {}
    async with registry.database.read() as session:
        names = {row.id: row.name for row in (await session.execute(select(Adapter))).scalars()}
        for quota in (await session.execute(select(Quota))).scalars():
            use = await leases.use(session, quota, month_of(time.time()), time.time() + LEASE_S + CLOCKS_S)
            found[quota.tenant_id, names.get(quota.adapter_id or "")] = use
    assert len(found) == 2 * len(TENANTS)
    for (tenant, adapter), use in found.items():
        of = [row for row in rows if row.tenant_id == tenant and adapter in (None, row.adapter.rpartition("/")[2])]
        tokens = sum(row.prompt_tokens + row.output_tokens for row in of)
        assert (use.used, use.leased) == (tokens, 0), (tenant, adapter)
        assert tokens > 0


AFTERWARDS: list[Check] = [no_quota_leaked]
"""More that must hold of a registry when the load is over and everything has been drained."""

pytestmark = pytest.mark.skipif(
    postgres.binaries() is None, reason="PostgreSQL is not installed; on Debian: apt-get install postgresql"
)


async def test_no_row_is_lost_or_doubled(tmp_path: Path) -> None:
    await kill(tmp_path, KILLS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_no_row_is_lost_or_doubled_in_the_long_run(tmp_path: Path) -> None:
    keep_result("soak_usage", await kill(tmp_path, SOAK_KILLS))


async def kill(folder: Path, kills: int) -> dict[str, Any]:
    """Answers what was seen."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw, began = random.Random(seed), time.monotonic()
    async with crashing(folder) as here:
        named: dict[str, Victim] = {"gateway": here.gateway, "engine": here.engine, "database": here.database}
        victims = list(itertools.islice(itertools.cycle(named), kills))
        draw.shuffle(victims)
        for name in victims:
            await here.strike(named[name], draw)
            await whole(here.registry)
        await here.more(5)
        await here.calm()
        repeated = sum([await administrator.repeat() for administrator in here.admins])
        await drained(here)
        await here.gateway.kill()  # it goes on making changes, and bills of streams that were cut
        rows = await kept(here.registry)
        check_ledger(here, rows)
        await check_sums(here.registry)
        await whole(here.registry)
        equal(await here.source.refresh(), await here.registry.snapshots().start())
        assert here.source.full_loads == 1
        changes = await check_audit(here)
        events = await chains(here.registry, here.admin, ["platform", TENANT, *TENANTS])
        for check in AFTERWARDS:
            await check(here.registry)
    return {
        "seed": seed,
        "kills": dict(Counter(victims)),
        "seconds": round(time.monotonic() - began, 1),
        "requests_begun": here.begun,
        "streams_ended": len(here.ended),
        "requests_failed": here.broken,
        "ledger_rows": len(rows),
        "changes_answered": changes + repeated,
        "changes_tried": changes + sum(administrator.tried for administrator in here.admins),
        "audit_events": events,
    }


async def drained(here: Crashing) -> None:
    """Returns once every end that a client saw is in the ledger."""
    wanted = {one.ledger_id for one in here.ended}
    async with asyncio.timeout(30):
        while True:
            missing = wanted - {row.ledger_id for row in await kept(here.registry)}
            if not missing:
                return
            await asyncio.sleep(0.1)


def check_ledger(here: Crashing, rows: list[UsageEvent]) -> None:
    by_request: dict[str, list[UsageEvent]] = {}
    for row in rows:
        by_request.setdefault(row.request_id, []).append(row)
    assert [found for found in by_request.values() if len(found) > 1] == [], "one request, two bills"
    for one in here.ended:
        (row,) = by_request[one.request_id]
        assert (row.ledger_id, row.output_tokens, row.outcome) == (one.ledger_id, one.output_tokens, "OK")
        assert (row.labels, row.principal) == ({"w": one.request_id}, "caller")
        assert (row.adapter, row.version) == (one.adapter, one.version)
    assert len(here.ended) == len({one.request_id for one in here.ended})


async def check_audit(here: Crashing) -> int:
    """Every change that was answered to the gateway has its event, once."""
    noted: list[str] = []
    page = PageRequest.of(1000, "")
    while True:
        answer = await here.registry.audit.list(here.admin, TENANT, page)
        noted += [row.subject.split("/")[-1] for row in answer.rows if row.action == "key.create"]
        if not answer.next_token:
            break
        page = PageRequest.of(1000, answer.next_token)
    answered = (here.home / "answered").read_text().split()
    assert len(set(noted)) == len(noted)
    assert set(answered) <= set(noted)
    return len(answered)

"""Processes are killed at random moments under load: what a client was told is in the ledger, once, and what was
answered to an administrator is in the audit chain."""

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
from lorry.registry.db.tables import Quota, UsageEvent
from lorry.registry.leases import repository as leases
from lorry.registry.leases.months import month_of
from lorry.registry.leases.terms import CLOCKS_S, LEASE_S
from tests.integration.crash.gateway import TENANT
from tests.integration.crash.world import Check, Crashing, Victim, crashing
from tests.support.results import keep_result
from tests.unit.registry import postgres
from tests.unit.registry.usages import check_sums, kept

KILLS = 12
SOAK_KILLS = 50


async def no_quota_leaked(registry: Registry) -> None:
    """The month's tokens are those of the ledger, and no lease of a killed gateway outlives its time."""
    async with registry.database.read() as session:
        (quota,) = (await session.execute(select(Quota))).scalars()
        found = await leases.use(session, quota, month_of(time.time()), time.time() + LEASE_S + CLOCKS_S)
    tokens = sum(row.prompt_tokens + row.output_tokens for row in await kept(registry))
    assert (found.used, found.leased) == (tokens, 0)
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
        await here.more(5)
        await here.calm()
        await drained(here)
        await here.gateway.kill()  # it goes on making changes, and bills of streams that were cut
        rows = await kept(here.registry)
        check_ledger(here, rows)
        await check_sums(here.registry)
        changes = await check_audit(here)
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
        "changes_answered": changes,
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
    assert len(here.ended) == len({one.request_id for one in here.ended})


async def check_audit(here: Crashing) -> int:
    """Every change that was answered has its event, once, and no event is without its change."""
    for tenant in (TENANT, "platform"):
        found = await here.registry.audit.verify(here.admin, tenant)
        assert found.intact, found.problem
    noted: list[str] = []
    page = PageRequest.of(1000, "")
    while True:
        answer = await here.registry.audit.list(here.admin, TENANT, page)
        noted += [row.subject.split("/")[-1] for row in answer.rows if row.action == "key.create"]
        if not answer.next_token:
            break
        page = PageRequest.of(1000, answer.next_token)
    made = await here.keys()
    assert Counter(noted) == Counter(made)
    answered = (here.home / "answered").read_text().split()
    assert set(answered) <= set(noted)
    return len(answered)

"""What has no row in the ledger: counts of writers add up, however often each is written, and are a tenant's own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lorry.errors import InvalidRequest, ResourceNotFound, RoleTooLow
from lorry.ids import TenantId
from lorry.registry import Role, verify_tenant
from lorry.registry.adapters import repository as adapters
from lorry.registry.usage.outcomes import Outcome
from lorry.registry.usage.outcomes_repository import HOURS_MAX, UnbilledSum
from lorry.registry.usage.queries import Dimension
from tests.unit.registry.conftest import World
from tests.unit.registry.test_authz import Proof
from tests.unit.registry.usages import NOON, usage

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
START, END = NOON - 2 * DAY, NOON + 2 * DAY


def one(world: World, reason: str, hours: int = 0, adapter: str = "", tenant: Any = None) -> Outcome:
    return Outcome(tenant or world.admin.tenant, NOON + hours * HOUR, adapter, reason)


async def told(world: World, *dimensions: Dimension, tenant: str = "platform", **more: Any) -> list[UnbilledSum]:
    start, end = more.pop("start", START), more.pop("end", END)
    return await world.registry.usage_reports.unbilled(world.admin, tenant, start, end, dimensions, **more)


async def test_counts_of_several_writers_add_up_and_writing_again_changes_nothing(world: World) -> None:
    write = world.registry.outcomes.write
    for _ in range(2):
        await write("gw_1", {one(world, "OVERLOADED"): 3, one(world, "CANCELLED"): 1})
        await write("gw_2", {one(world, "OVERLOADED"): 4})
    await write("gw_1", {one(world, "OVERLOADED"): 5, one(world, "OVERLOADED", adapter="ad_1"): 1})
    await write("gw_2", {one(world, "OVERLOADED"): 2})  # of before, and late
    await write("gw_2", {})
    assert await told(world) == [UnbilledSum("", "CANCELLED", 1), UnbilledSum("", "OVERLOADED", 10)]


async def test_by_day_and_by_hour_as_the_sums_are(world: World) -> None:
    for hours in (-36, -1, 0, 30, 48):  # the last is behind the end
        await world.registry.outcomes.write("gw", {one(world, "CANCELLED", hours): 1, one(world, "DRAINING", hours): 2})
    whole = {"CANCELLED": 4, "DRAINING": 8}
    for dimensions in ((), (Dimension.OUTCOME,), (Dimension.MODEL, Dimension.KEY)):
        assert {reason: count for _, reason, count in await told(world, *dimensions)} == whole
    days = [(time, count) for time, reason, count in await told(world, Dimension.DAY) if reason == "DRAINING"]
    assert days == [("2026-11-01T00:00:00Z", 2), ("2026-11-02T00:00:00Z", 4), ("2026-11-03T00:00:00Z", 2)]
    hours_ = [time for time, reason, _ in await told(world, Dimension.OUTCOME, Dimension.HOUR) if reason == "DRAINING"]
    assert hours_ == [
        "2026-11-01T00:00:00Z", "2026-11-02T11:00:00Z", "2026-11-02T12:00:00Z", "2026-11-03T18:00:00Z",
    ]  # fmt: skip
    long = await told(world, Dimension.HOUR, start=END - HOURS_MAX - HOUR)
    assert long == [UnbilledSum("", "CANCELLED", 4), UnbilledSum("", "DRAINING", 8)]
    minutes: dict[str, Any] = {"start": NOON - timedelta(minutes=20), "end": NOON + timedelta(minutes=10)}
    assert await told(world, Dimension.MINUTE, **minutes) == [
        UnbilledSum("", "CANCELLED", 2), UnbilledSum("", "DRAINING", 4),
    ]  # fmt: skip


async def test_they_are_in_no_sum_and_the_ledgers_are_not_in_them(world: World) -> None:
    await world.registry.usage.write([usage(world.admin.tenant, 1, outcome="CANCELLED")])
    await world.registry.outcomes.write("gw", {one(world, "CANCELLED"): 2})
    page = await world.registry.usage_reports.query(world.admin, "platform", START, END, [Dimension.OUTCOME])
    assert [(row.group, row.sums.requests) for row in page.rows] == [(("CANCELLED",), 1)]
    assert await told(world) == [UnbilledSum("", "CANCELLED", 2)]


async def test_a_tenant_reads_its_own(world: World) -> None:
    for name in ("anna", "bert"):
        row = await world.registry.tenants.create(world.admin, name)
        tenant = verify_tenant(Proof(TenantId(row.id), "owner"), TenantId(row.id))
        await world.registry.outcomes.write("gw", {one(world, name.upper(), tenant=tenant): 1})
    assert [row.reason for row in await told(world, tenant="anna")] == ["ANNA"]
    assert [row.reason for row in await told(world, tenant="bert")] == ["BERT"]
    _, key = await world.registry.keys.create(world.admin, "anna", "viewer", Role.VIEWER)
    anna = (await world.registry.snapshots().start()).authenticate(key, 0)
    query = world.registry.usage_reports.unbilled
    assert [row.reason for row in await query(anna, "anna", START, END)] == ["ANNA"]
    _, key = await world.registry.keys.create(world.admin, "anna", "member", Role.MEMBER)
    with pytest.raises(RoleTooLow):
        await query((await world.registry.snapshots().start()).authenticate(key, 0), "anna", START, END)
    for name in ("bert", "nobody"):
        with pytest.raises(ResourceNotFound):
            await query(anna, name, START, END)
    with pytest.raises(InvalidRequest):
        await query(anna, "anna", END, START)


async def test_of_one_model(world: World) -> None:
    async with world.registry.database.write() as session:
        ids = {
            name: (await adapters.insert_adapter(session, world.admin.tenant, name, "")).id
            for name in ("pirate", "caps")
        }
    counts = {one(world, "OVERLOADED", adapter=ids["pirate"]): 2, one(world, "OVERLOADED", adapter=ids["caps"]): 5}
    await world.registry.outcomes.write("gw", {**counts, one(world, "OVERLOADED"): 9})
    pirate = "tenants/platform/adapters/pirate"
    assert await told(world, model=pirate) == [UnbilledSum("", "OVERLOADED", 2)]
    for none in (f"{pirate}/versions/1", f"{pirate}@prod", "models/tiny", "tenants/platform/adapters/none", "x"):
        assert await told(world, model=none) == []

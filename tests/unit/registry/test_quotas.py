"""Quotas: who sets them, what may be set, what is audited and announced."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from lorry import errors
from lorry.registry import Caller, PageRequest
from lorry.registry.etags import NEW
from lorry.registry.limits.bounds import COUNT_MAX, TOKENS_MAX, LimitValues
from lorry.registry.limits.service import QuotaView, quota_etag
from lorry.registry.names import AdapterName, parse_quota
from tests.unit.registry.conftest import World
from tests.unit.registry.test_migrations import make_version
from tests.unit.registry.usages import NOON, usage

ALL = PageRequest.of(0, "")
PIRATE, JSON = (AdapterName("platform", name) for name in ("pirate", "json"))
SOME = LimitValues(requests_per_minute=60, tokens_per_month=1000)
AT_ONCE = 20


async def shared(world: World) -> Caller:
    """Tenant ``anna``, with grants on two adapters of the platform; answers its owner."""
    await world.registry.tenants.create(world.admin, "anna")
    for name in (PIRATE, JSON):
        await make_version(world, name=name.adapter)
        await world.registry.grants.create(world.admin, "anna", name.bare)
    return await world.caller("anna")


async def put(world: World, limits: LimitValues, adapter: AdapterName | None = None, etag: str = "") -> QuotaView:
    return await world.registry.quotas.set(world.admin, "anna", adapter, limits, etag)


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({}, "limits"),
        ({"requests_per_minute": 0}, "limits.requests_per_minute"),
        ({"requests_per_minute": COUNT_MAX + 1}, "limits.requests_per_minute"),
        ({"concurrency": 0}, "limits.concurrency"),
        ({"concurrency": COUNT_MAX + 1}, "limits.concurrency"),
        ({"queue_length": 1}, "limits.queue_length"),
        ({"concurrency": 1, "queue_length": COUNT_MAX + 1}, "limits.queue_length"),
        ({"tokens_per_month": TOKENS_MAX + 1}, "limits.tokens_per_month"),
        ({"max_tokens_cap": 0}, "limits.max_tokens_cap"),
        ({"max_tokens_cap": COUNT_MAX + 1}, "limits.max_tokens_cap"),
    ],
)
def test_limits_have_bounds(limits: dict[str, int], field: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        LimitValues(**limits).check()
    assert [violation.field for violation in caught.value.violations] == [field]


async def test_the_bounds_themselves_are_kept(world: World) -> None:
    await shared(world)
    least = LimitValues(1, 1, 0, 0, 1)
    most = LimitValues(COUNT_MAX, COUNT_MAX, COUNT_MAX, TOKENS_MAX, COUNT_MAX)
    for limits in (least, most):
        row = (await put(world, limits)).row
        assert LimitValues(*(getattr(row, name) for name in LimitValues.__dataclass_fields__)) == limits


async def test_a_quotas_life(world: World) -> None:
    await shared(world)
    quotas, admin = world.registry.quotas, world.admin
    made = await put(world, SOME, etag=NEW)
    first = quota_etag(made.row)
    with pytest.raises(errors.AlreadyExists):
        await put(world, SOME, etag=NEW)
    assert quota_etag((await put(world, SOME, etag=first)).row) == first  # as it is
    changed = await put(world, LimitValues(concurrency=2), etag=first)
    assert (changed.row.requests_per_minute, changed.row.concurrency, changed.row.revision) == (None, 2, 2)
    for call in (put(world, SOME, etag=first), quotas.delete(admin, "anna", made.row.id, first)):
        with pytest.raises(errors.StaleEtag):
            await call
    before = world.source.current().epoch
    await quotas.delete(admin, "anna", made.row.id, quota_etag(changed.row))
    assert (await quotas.list(admin, "anna", ALL)).rows == []
    await quotas.delete(admin, "anna", made.row.id, "whatever")  # again: no change
    snapshot = await world.source.refresh()
    assert snapshot.epoch > before
    events = (await world.registry.audit.list(admin, "anna", ALL)).rows
    assert [event.action for event in events if event.action.startswith("quota")] == [
        "quota.delete", "quota.set", "quota.set",
    ]  # fmt: skip
    assert events[1].details == {"adapter": "", "limits": dict.fromkeys(LimitValues.__dataclass_fields__) | {
        "concurrency": 2
    }}  # fmt: skip


async def test_gateways_see_what_was_set(world: World) -> None:
    anna = await shared(world)
    for adapter, limits in ((None, SOME), (PIRATE, LimitValues(max_tokens_cap=7))):
        await put(world, limits, adapter)
    table = (await world.source.refresh()).tables.quotas[anna.tenant]
    assert {key == "": entry.max_tokens_cap for key, entry in table.items()} == {True: None, False: 7}
    (pirate,) = (entry for key, entry in table.items() if key)
    await world.registry.quotas.delete(world.admin, "anna", pirate.id)
    table = (await world.source.refresh()).tables.quotas[anna.tenant]
    assert set(table) == {""}


async def test_pages_begin_with_the_tenants_own(world: World) -> None:
    await shared(world)
    for adapter in (JSON, None, PIRATE):
        await put(world, SOME, adapter)
    seen: list[str] = []
    page = PageRequest.of(1, "")
    while True:
        found = await world.registry.quotas.list(world.admin, "anna", page)
        seen += [view.adapter for view in found.rows]
        if not found.next_token:
            break
        page = PageRequest.of(1, found.next_token)
    assert seen[0] == ""
    assert sorted(seen) == ["", JSON.bare, PIRATE.bare]


async def test_who_may(world: World) -> None:
    anna = await shared(world)
    made = await put(world, SOME)
    quotas = world.registry.quotas
    member = await world.caller("anna", "member")
    await world.registry.tenants.create(world.admin, "bert")
    bert = await world.caller("bert")
    assert len((await quotas.list(anna, "anna", ALL)).rows) == 1
    for call in (
        quotas.set(anna, "anna", None, SOME),
        quotas.delete(anna, "anna", made.row.id),
        quotas.list(member, "anna", ALL),
    ):
        with pytest.raises(errors.RoleTooLow):
            await call
    with pytest.raises(errors.ResourceNotFound):
        await quotas.list(bert, "anna", ALL)
    await quotas.delete(world.admin, "bert", made.row.id)  # none of bert's
    assert len((await quotas.list(anna, "anna", ALL)).rows) == 1


async def test_an_adapter_needs_a_grant(world: World) -> None:
    await shared(world)
    await make_version(world, name="secret")
    for name in ("secret", "unknown"):
        with pytest.raises(errors.ResourceNotFound):
            await put(world, SOME, AdapterName("platform", name))
    (grant, *_) = (await world.registry.grants.list(world.admin, "anna", ALL)).rows
    assert grant.adapter is not None
    await put(world, SOME, AdapterName("platform", grant.adapter.name))
    await world.registry.grants.revoke(world.admin, "anna", grant.id)
    with pytest.raises(errors.ResourceNotFound):
        await put(world, LimitValues(concurrency=1), AdapterName("platform", grant.adapter.name))
    assert len((await world.registry.quotas.list(world.admin, "anna", ALL)).rows) == 1  # it stays


@pytest.mark.parametrize("adapter", [None, PIRATE])
async def test_one_of_many_first_sets_at_once_wins(world: World, adapter: AdapterName | None) -> None:
    await shared(world)
    tries = [put(world, LimitValues(concurrency=i + 1), adapter, NEW) for i in range(AT_ONCE)]
    found: list[Any] = await asyncio.gather(*tries, return_exceptions=True)
    won = [one for one in found if isinstance(one, QuotaView)]
    assert len(won) == 1
    assert {type(one) for one in found if one is not won[0]} == {errors.AlreadyExists}
    (row,) = (await world.registry.quotas.list(world.admin, "anna", ALL)).rows
    assert row.row.concurrency == won[0].row.concurrency


async def test_one_of_many_changes_at_once_wins_by_etag(world: World) -> None:
    await shared(world)
    etag = quota_etag((await put(world, SOME)).row)
    tries = [put(world, replace(SOME, concurrency=i + 1), None, etag) for i in range(AT_ONCE)]
    found: list[Any] = await asyncio.gather(*tries, return_exceptions=True)
    assert len([one for one in found if isinstance(one, QuotaView)]) == 1
    assert len([one for one in found if isinstance(one, errors.StaleEtag)]) == AT_ONCE - 1


async def test_use_is_the_ledgers_before_anybody_takes_tokens(world: World) -> None:
    anna = await shared(world)
    rows = [usage(anna.tenant, number, adapter=name.bare) for number, name in enumerate((PIRATE, PIRATE, JSON))]
    await world.registry.usage.write([*rows, usage(world.admin.tenant, 9)])
    world.registry.quotas._clock = lambda: NOON.timestamp()
    await put(world, SOME)
    await put(world, SOME, PIRATE)
    await put(world, LimitValues(concurrency=1), JSON)
    found = {view.adapter: view for view in (await world.registry.quotas.list(world.admin, "anna", ALL)).rows}
    assert {name: view.use and (view.month, view.use.used, view.use.leased) for name, view in found.items()} == {
        "": ("2026-11", 21, 0),
        PIRATE.bare: ("2026-11", 14, 0),
        JSON.bare: None,
    }


@pytest.mark.parametrize("name", ["tenants/a/quotas/x", "tenants/a/quotas/qu_" + "G" * 32, "quotas/qu_" + "0" * 32])
def test_not_a_quotas_name(name: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        parse_quota("name", name)

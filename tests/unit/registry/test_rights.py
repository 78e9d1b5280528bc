"""Tenants by etag, keys of owners, their rotation, and pins."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from lorry import errors
from lorry.registry import PageRequest, Role
from lorry.registry.authz import Caller
from lorry.registry.db.base import utcnow
from lorry.registry.grants.service import PinMode
from lorry.registry.names import AdapterName
from lorry.registry.tenants.service import OVERLAP_MAX, tenant_etag
from tests.unit.registry.conftest import World
from tests.unit.registry.test_migrations import make_version

ALL = PageRequest.of(0, "")
PREFIX = "s3://bucket/anna/"


async def anna(world: World, role: str = "owner") -> Caller:
    await world.registry.tenants.create(world.admin, "anna")
    return await world.caller("anna", role)


async def select(world: World, statement: str) -> list[Any]:
    async with world.registry.database.read() as session:
        return list((await session.execute(text(statement))).all())


async def execute(world: World, statement: str) -> None:
    async with world.registry.database.write() as session:
        await session.execute(text(statement))


async def test_import_prefixes_are_the_administrators_to_set(world: World) -> None:
    owner = await anna(world)
    tenants = world.registry.tenants
    assert (await tenants.get(owner, "anna")).import_prefixes is None
    with pytest.raises(errors.RoleTooLow):
        await tenants.update(owner, "anna", ["import_prefixes"], import_prefixes=[PREFIX])
    for bad in (["s3://bucket/anna"], ["s3://bucket/../"], [PREFIX] * 17):
        with pytest.raises(errors.InvalidRequest, match="import_prefixes"):
            await tenants.update(world.admin, "anna", ["import_prefixes"], import_prefixes=bad)
    assert (await tenants.get(owner, "anna")).import_prefixes is None
    await tenants.update(world.admin, "anna", ["import_prefixes"], import_prefixes=[PREFIX])
    await tenants.update(world.admin, "anna", ["display_name"], display_name="Anna")  # leaves the others
    row = await tenants.get(owner, "anna")
    assert (row.import_prefixes, row.display_name, row.revision) == ([PREFIX], "Anna", 3)
    await tenants.update(world.admin, "anna", ["import_prefixes"])
    assert (await tenants.get(owner, "anna")).import_prefixes == []
    (said,) = await select(world, "SELECT details FROM audit_event WHERE action = 'tenant.update' ORDER BY id LIMIT 1")
    assert PREFIX in str(said[0])


async def test_a_tenant_is_changed_by_one_of_many_with_its_etag(world: World) -> None:
    await anna(world)
    tenants, admin = world.registry.tenants, world.admin
    first = tenant_etag(await tenants.get(admin, "anna"))
    found = await asyncio.gather(
        *(tenants.update(admin, "anna", ["display_name"], display_name=f"{i}", etag=first) for i in range(20)),
        return_exceptions=True,
    )
    lost = [type(each) for each in found if isinstance(each, BaseException)]
    assert lost == [errors.StaleEtag] * 19
    assert (await tenants.get(admin, "anna")).revision == 2
    await asyncio.gather(*(tenants.update(admin, "anna", ["display_name"], display_name=f"{i}") for i in range(20)))
    assert (await tenants.get(admin, "anna")).revision == 22


async def test_an_owner_makes_no_role_above_its_own_and_no_key_of_others(world: World) -> None:
    owner, keys = await anna(world), world.registry.keys
    await world.registry.tenants.create(world.admin, "bert")
    for role in (Role.OWNER, Role.MEMBER):
        _, made = await keys.create(owner, "anna", f"my-{role}", role)
        assert (await world.source.refresh()).authenticate(made, 0).role == role
    for tenant in ("anna", "platform", "bert"):
        with pytest.raises(errors.RoleTooLow):
            await keys.create(owner, tenant, "root", Role.PLATFORM_ADMIN)
    for tenant in ("bert", "platform", "nobody"):
        other = (await keys.list(world.admin, tenant, ALL)).rows if tenant != "nobody" else []
        with pytest.raises(errors.LorryError) as caught:
            await keys.create(owner, tenant, "x", Role.MEMBER)
        assert type(caught.value) in (errors.ResourceNotFound, errors.InvalidRequest)
        for key in [row.id for row in other] or ["0" * 16]:
            for step in (
                keys.rotate(owner, tenant, key),
                keys.revoke(owner, tenant, key),
                keys.rotate(owner, "anna", key),
            ):
                with pytest.raises(errors.ResourceNotFound):
                    await step
    member = await world.caller("anna", "member")
    for step in (
        keys.create(member, "anna", "x", Role.MEMBER),
        keys.rotate(member, "anna", member.key_id),
        keys.revoke(member, "anna", owner.key_id),
    ):
        with pytest.raises(errors.RoleTooLow):
            await step


async def test_a_rotated_key_overlaps_and_ends(world: World) -> None:
    owner, keys = await anna(world), world.registry.keys
    old, text_ = await keys.create(owner, "anna", "robot", Role.MEMBER)
    new, new_text = await keys.rotate(owner, "anna", old.id, timedelta(hours=1))
    assert (new.principal.name, new.principal.role, new.expires_at) == ("robot", "member", None)
    now = utcnow().timestamp()
    snapshot = await world.source.refresh()
    assert snapshot.authenticate(text_, now).principal == snapshot.authenticate(new_text, now).principal == "robot"
    with pytest.raises(errors.Unauthenticated):
        snapshot.authenticate(text_, now + 3601)
    assert snapshot.authenticate(new_text, now + 3601)

    shorter, _ = await keys.rotate(owner, "anna", old.id, timedelta(minutes=1))  # it is active, and ends earlier now
    assert shorter.id not in (old.id, new.id)
    await keys.rotate(owner, "anna", old.id, OVERLAP_MAX)  # and later never
    with pytest.raises(errors.Unauthenticated):
        (await world.source.refresh()).authenticate(text_, now + 61 + 10)
    rows = {row.id: row for row in (await keys.list(owner, "anna", ALL)).rows}
    assert rows[old.id].revoked_at is None
    ends = rows[old.id].expires_at
    assert ends is not None
    assert ends.timestamp() < now + 61 + 10


async def test_a_key_that_ends_by_itself_is_not_prolonged(world: World) -> None:
    owner, keys = await anna(world), world.registry.keys
    soon = utcnow() + timedelta(minutes=2)
    old, _ = await keys.create(owner, "anna", "robot", Role.MEMBER, soon)
    new, _ = await keys.rotate(owner, "anna", old.id, timedelta(days=1), soon + timedelta(days=2))
    rows = {row.id: row.expires_at for row in (await keys.list(owner, "anna", ALL)).rows}
    assert (rows[old.id], rows[new.id]) == (soon, soon + timedelta(days=2))


async def test_without_an_overlap_the_old_key_is_dead_whatever_the_clock(world: World) -> None:
    owner, keys = await anna(world), world.registry.keys
    old, text_ = await keys.create(owner, "anna", "robot", Role.MEMBER)
    assert (await world.source.refresh()).authenticate(text_, utcnow().timestamp()).key_id == old.id
    await keys.rotate(owner, "anna", old.id)
    snapshot = await world.source.refresh()
    for clock in (utcnow().timestamp() + 1, utcnow().timestamp() - 3600):
        with pytest.raises(errors.Unauthenticated):
            snapshot.authenticate(text_, clock)


async def test_what_cannot_be_rotated(world: World) -> None:
    owner, keys = await anna(world), world.registry.keys
    revoked, _ = await keys.create(owner, "anna", "robot", Role.MEMBER)
    await keys.revoke(owner, "anna", revoked.id)
    expired, _ = await keys.create(owner, "anna", "robot", Role.MEMBER, utcnow() + timedelta(minutes=1))
    await execute(world, f"UPDATE api_key SET expires_at = '2026-01-01 00:00:00+00' WHERE id = '{expired.id}'")
    for key, word in ((revoked, "revoked"), (expired, "expired")):
        with pytest.raises(errors.FailedPrecondition, match=word):
            await keys.rotate(owner, "anna", key.id, timedelta(days=1))
    live, _ = await keys.create(owner, "anna", "robot", Role.MEMBER)
    for overlap in (timedelta(seconds=-1), OVERLAP_MAX + timedelta(microseconds=1)):
        with pytest.raises(errors.InvalidRequest, match="overlap"):
            await keys.rotate(owner, "anna", live.id, overlap)
    with pytest.raises(errors.InvalidRequest, match="expire_time"):
        await keys.rotate(owner, "anna", live.id, expires_at=utcnow())
    listed = [row.id for row in (await keys.list(owner, "anna", ALL)).rows]
    assert {revoked.id, expired.id, live.id} <= set(listed)
    assert len(listed) == 4  # and the owner's own: nothing was made


async def test_one_of_many_rotations_at_once_wins(world: World) -> None:
    owner, keys = await anna(world), world.registry.keys
    old, _ = await keys.create(owner, "anna", "robot", Role.MEMBER)
    found = await asyncio.gather(*(keys.rotate(owner, "anna", old.id) for _ in range(20)), return_exceptions=True)
    lost = [type(each) for each in found if isinstance(each, BaseException)]
    assert lost == [errors.FailedPrecondition] * 19
    assert len((await keys.list(owner, "anna", ALL)).rows) == 3


async def test_when_a_key_was_used_last(world: World) -> None:
    owner, keys = await anna(world), world.registry.keys
    made, _ = await keys.create(owner, "anna", "robot", Role.MEMBER)
    assert made.use is None
    await execute(world, f"INSERT INTO key_use (key_id, used_at) VALUES ('{made.id}', '2026-11-01 00:00:00+00')")
    used = {row.id: row.use for row in (await keys.list(owner, "anna", ALL)).rows}
    found = used[made.id]
    assert found is not None
    assert found.used_at.isoformat() == "2026-11-01T00:00:00+00:00"
    assert used[owner.key_id] is None
    assert (await keys.revoke(owner, "anna", made.id)).use is not None


async def granted(world: World, *names: str) -> Caller:
    owner = await anna(world)
    for name in names:
        await make_version(world, name=name)
        await make_version(world, name=name)
        await world.registry.grants.create(world.admin, "anna", f"tenants/platform/adapters/{name}")
    return owner


def version(name: str, number: int) -> AdapterName:
    return AdapterName("platform", name, version=number)


async def test_pins_are_listed_replaced_and_cleared(world: World) -> None:
    owner = await granted(world, "b.c", "a", "b")
    grants = world.registry.grants
    first = await grants.set_pin(owner, "anna", version("a", 1))
    assert (first.number, first.mode) == (1, "HARD")
    await grants.set_pin(owner, "anna", version("b.c", 2), PinMode.DEFAULT)
    await grants.set_pin(owner, "anna", version("b", 2))
    epoch = (await world.source.refresh()).epoch
    same = await grants.set_pin(owner, "anna", version("a", 1))
    assert same.created_at == first.created_at
    assert (await world.source.refresh()).epoch == epoch
    changed = await grants.set_pin(owner, "anna", version("a", 1), PinMode.DEFAULT)
    assert (changed.mode, changed.created_at > first.created_at) == ("DEFAULT", True)
    page = await grants.list_pins(owner, "anna", PageRequest.of(2, ""))
    rest = await grants.list_pins(owner, "anna", PageRequest.of(2, page.next_token))
    listed = [(row.adapter.tenant.name, row.adapter.name, row.number, row.mode) for row in (*page.rows, *rest.rows)]
    assert listed == [
        ("platform", "a", 1, "DEFAULT"), ("platform", "b", 2, "HARD"), ("platform", "b.c", 2, "DEFAULT"),
    ]  # fmt: skip
    assert rest.next_token == ""
    await grants.clear_pin(owner, "anna", AdapterName("platform", "b"))
    await grants.clear_pin(owner, "anna", AdapterName("platform", "b"))
    assert len((await grants.list_pins(owner, "anna", ALL)).rows) == 2
    assert not (await grants.list_pins(world.admin, "platform", ALL)).rows
    said = [
        row[0] for row in await select(world, "SELECT action FROM audit_event WHERE action LIKE 'pin.%' ORDER BY id")
    ]
    assert said == ["pin.set"] * 4 + ["pin.clear"]


async def test_what_may_be_pinned(world: World) -> None:
    owner = await granted(world, "a")
    grants = world.registry.grants
    await execute(world, "UPDATE adapter_version SET deprecated_at = '2026-11-01 00:00:00+00' WHERE number = 1")
    await execute(world, "UPDATE adapter_version SET state = 'QUARANTINED' WHERE number = 2")
    assert (await grants.set_pin(owner, "anna", version("a", 1))).number == 1
    with pytest.raises(errors.AdapterQuarantined):
        await grants.set_pin(owner, "anna", version("a", 2))
    await execute(world, "UPDATE adapter SET deleted_at = '2026-11-01 00:00:00+00'")
    unknown = []
    for name in ("a", "never"):
        with pytest.raises(errors.ResourceNotFound) as caught:
            await grants.set_pin(owner, "anna", version(name, 1))
        unknown.append(caught.value.message)
    assert unknown[0] == unknown[1]
    await grants.clear_pin(owner, "anna", AdapterName("platform", "a"))
    assert not (await grants.list_pins(owner, "anna", ALL)).rows
    with pytest.raises(errors.ResourceNotFound):
        await grants.create(world.admin, "anna", "tenants/platform/adapters/a")

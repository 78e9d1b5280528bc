"""Any history of changes, polled whenever, ends in what a full load is."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select, update

from lorry import errors
from lorry.registry import PageRequest, Registry, VersionState
from lorry.registry import changes as change_log
from lorry.registry.bootstrap import _first_admin
from lorry.registry.changes import Change, Kind
from lorry.registry.db.base import new_id, utcnow
from lorry.registry.db.tables import Adapter, AdapterVersion, Quota, Tenant
from lorry.registry.grants.service import PinMode
from lorry.registry.names import AdapterName
from tests.unit.registry.conftest import NOW, PEPPERS, World
from tests.unit.registry.deltas import FOO, NEW, add_version, equals_full_load

OPERATIONS = (
    "tenant",
    "suspend",
    "key",
    "revoke_key",
    "version",
    "rejected",
    "grant",
    "revoke_grant",
    "pin",
    "default_pin",
    "unpin",
    "alias",
    "canary",
    "promote",
    "unalias",
    "delete",
    "deprecate",
    "quota",
    "no_quota",
)


@settings(max_examples=16, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 2), st.booleans()), max_size=20))
def test_any_history_by_deltas_equals_a_full_load(
    sqlite_template: Path, tmp_path: Path, history: list[tuple[str, int, bool]]
) -> None:
    shutil.copy(sqlite_template, tmp_path / "history.db")
    for stale in ("history.db-wal", "history.db-shm"):
        (tmp_path / stale).unlink(missing_ok=True)
    asyncio.run(_replay(f"sqlite:///{tmp_path / 'history.db'}", history))


async def _replay(url: str, history: list[tuple[str, int, bool]]) -> None:
    registry = Registry(url, PEPPERS)
    key = await _first_admin(registry.database, PEPPERS)
    assert key is not None
    source = registry.snapshots()
    world = World(registry, source, (await source.start()).authenticate(key, NOW), key)
    for tenant in ("t0", "t1"):
        await _do(world, "tenant", tenant, 1)
    await _do(world, "version", "", 1)
    for step, which, poll in history:
        try:
            await _do(world, step, f"t{which}", which + 1)
        except errors.LorryError:
            pass  # an operation on what is not there yet changes nothing
        if poll:
            await source.refresh()
    await equals_full_load(world)
    await registry.close()


async def _do(world: World, step: str, tenant: str, number: int) -> None:
    registry, admin, everything = world.registry, world.admin, PageRequest.of(0, "")
    version = AdapterName("platform", "a", version=number)
    if step == "tenant":
        await registry.tenants.create(admin, tenant)
    elif step == "suspend":
        await registry.tenants.update(admin, tenant, ["suspended"], suspended=number != 1)
    elif step == "key":
        await world.key(tenant)
    elif step == "revoke_key":
        for key in (await registry.keys.list(admin, tenant, everything)).rows:
            await registry.keys.revoke(admin, tenant, key.id)
    elif step in ("version", "rejected"):
        await add_version(world, VersionState.READY if step == "version" else VersionState.REJECTED)
    elif step == "grant":
        await registry.grants.create(admin, tenant, FOO.bare if number != 2 else "models/tiny")
    elif step == "revoke_grant":
        for grant in (await registry.grants.list(admin, tenant, everything)).rows:
            await registry.grants.revoke(admin, tenant, grant.id)
    elif step == "pin":
        await registry.grants.set_pin(admin, tenant, version)
    elif step == "unpin":
        await registry.grants.clear_pin(admin, tenant, FOO)
    elif step == "default_pin":
        await registry.grants.set_pin(admin, tenant, version, PinMode.DEFAULT)
    elif step == "alias":
        await registry.aliases.set(admin, NEW, number)
    elif step == "canary":
        await registry.aliases.set_canary(admin, NEW, number, 100 * number)
    elif step == "promote":
        await registry.aliases.promote(admin, NEW)
    elif step == "unalias":
        await registry.aliases.delete(admin, NEW)
    else:
        await _do_by_row(world, step, tenant, number)


async def _do_by_row(world: World, step: str, tenant: str, number: int) -> None:
    """What other services than the ones of this test do, by the rows that they write."""
    async with world.registry.database.write() as session:
        adapter = (await session.execute(select(Adapter).where(Adapter.name == "a"))).scalar_one()
        if step == "delete":
            adapter.deleted_at = None if adapter.deleted_at else utcnow()
            change = Change(Kind.ADAPTER, adapter.id)
        elif step == "deprecate":
            of_number = (AdapterVersion.adapter_id == adapter.id) & (AdapterVersion.number == number)
            await session.execute(update(AdapterVersion).where(of_number).values(deprecated_at=utcnow()))
            change = Change(Kind.ADAPTER, adapter.id)
        else:
            limited = adapter.id if number == 2 else None
            found = await session.execute(select(Tenant.id).where(Tenant.name == tenant))
            tenant_id = found.scalar() or adapter.tenant_id
            same = (Quota.tenant_id == tenant_id) & Quota.adapter_id.is_not_distinct_from(limited)
            await session.execute(delete(Quota).where(same))
            if step == "quota":
                session.add(
                    Quota(
                        id=new_id("qu"), tenant_id=tenant_id, adapter_id=limited, concurrency=number, created_by="test"
                    )
                )
            change = Change(Kind.QUOTA, f"{tenant_id}/{limited or ''}")
        await change_log.record(session, change)

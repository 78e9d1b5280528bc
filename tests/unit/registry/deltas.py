"""A snapshot that came by deltas is the one that a full load makes."""

from __future__ import annotations

from sqlalchemy import text

from lorry.registry import VersionState
from lorry.registry import changes as change_log
from lorry.registry.changes import Change, Kind
from lorry.registry.names import AdapterName
from tests.unit.registry.conftest import World
from tests.unit.registry.test_migrations import make_version

FOO = AdapterName("platform", "a")
NEW = AdapterName("platform", "a", alias="new")


async def equals_full_load(world: World) -> None:
    delta = await world.source.refresh()
    full = await world.registry.snapshots().start()
    assert delta.epoch == full.epoch
    assert delta.tables.tenants == full.tables.tenants
    assert delta.tables.keys == full.tables.keys
    assert delta.tables.bases == full.tables.bases
    assert delta.tables.adapters == full.tables.adapters
    assert {k: v for k, v in delta.tables.grants.items() if v} == full.tables.grants
    assert {k: v for k, v in delta.tables.pins.items() if v} == full.tables.pins
    assert {k: v for k, v in delta.tables.quotas.items() if v} == full.tables.quotas
    assert (delta.base_names, delta.adapter_names) == (full.base_names, full.adapter_names)
    assert world.source.full_loads == 1


async def add_version(world: World, state: VersionState = VersionState.READY) -> None:
    """By repository, as registration needs a store; with the log entry that it would write."""
    await make_version(world, state)
    async with world.registry.database.write() as session:
        adapter = (await session.execute(text("SELECT id FROM adapter WHERE name = 'a'"))).scalar_one()
        base = (await session.execute(text("SELECT id FROM base_model"))).scalar_one()
        await change_log.record(session, Change(Kind.ADAPTER, adapter), Change(Kind.BASE_MODEL, base))

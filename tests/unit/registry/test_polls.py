"""A poll never hangs, whatever the database does, and PostgreSQL's announcements are a hint and no more."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

from lorry.errors import Unavailable
from lorry.registry import Registry, SnapshotSource
from lorry.registry.changes import Change, Kind, record
from lorry.registry.listening import EpochListener
from tests.support.stalling import Stall, stalling
from tests.support.waiting import end, until
from tests.unit.registry.conftest import PEPPERS, World

on_postgresql = pytest.mark.parametrize("url", ["postgresql"], indirect=True)
LONG = 60.0
"""Seconds between polls: longer than any test."""


def names(source: SnapshotSource) -> set[str]:
    return {tenant.name for tenant in source.current().tables.tenants.values()}


@asynccontextmanager
async def listening(world: World) -> AsyncIterator[SnapshotSource]:
    source = SnapshotSource(world.registry.database, PEPPERS, LONG)
    await source.start()
    task = asyncio.create_task(source.run())
    assert source.listener is not None
    listener = source.listener
    await until(lambda: listener.pid != 0)
    yield source
    await end(task)


@on_postgresql
async def test_an_announced_change_is_read_at_once(world: World) -> None:
    async with listening(world) as source:
        await world.registry.tenants.create(world.admin, "anna")
        await until(lambda: "anna" in names(source))


@on_postgresql
async def test_what_is_not_committed_is_not_announced(world: World) -> None:
    heard: list[None] = []
    listener = EpochListener(world.registry.database.engine, lambda: heard.append(None))
    task = asyncio.create_task(listener.run())
    await until(lambda: len(heard) == 1)  # it listens
    with pytest.raises(RuntimeError):  # noqa: PT012 - the error must leave through the transaction
        async with world.registry.database.write() as session:
            await record(session, Change(Kind.TENANT, "tn_x"))
            raise RuntimeError("rolled back")
    await world.registry.tenants.create(world.admin, "anna")
    await until(lambda: len(heard) >= 2)
    async with await psycopg.AsyncConnection.connect(_plain(world), autocommit=True) as other:
        await other.execute("NOTIFY lorry_registry, 'last'")
    await until(lambda: len(heard) >= 3)
    assert len(heard) == 3
    await end(task)


@on_postgresql
async def test_a_killed_listener_comes_back_and_reads_what_it_missed(world: World) -> None:
    async with listening(world) as source:
        assert source.listener is not None
        listener, first = source.listener, source.listener.pid
        async with await psycopg.AsyncConnection.connect(_plain(world), autocommit=True) as other:
            await other.execute("SELECT pg_terminate_backend(%s)", [first])
        await until(lambda: listener.pid != first)
        await world.registry.tenants.create(world.admin, "anna")  # most likely while nobody listens
        await until(lambda: "anna" in names(source), seconds=5)
        assert listener.pid not in (0, first)


@on_postgresql
async def test_a_lost_announcement_costs_a_poll(world: World) -> None:
    source = SnapshotSource(world.registry.database, PEPPERS, poll_seconds=0.05)
    source.listener = None
    await source.start()
    task = asyncio.create_task(source.run())
    await world.registry.tenants.create(world.admin, "anna")
    await until(lambda: "anna" in names(source))
    await end(task)


def _plain(world: World) -> str:
    return world.registry.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


@asynccontextmanager
async def behind_a_stall(url: str) -> AsyncIterator[tuple[Registry, Stall]]:
    """The registry at ``url``, reached through a socket that can stall."""
    target = make_url(url)
    with tempfile.TemporaryDirectory(prefix="lorry-stall-") as folder:
        here = Path(folder) / ".s.PGSQL.5432"
        async with stalling(Path(str(target.query["host"])) / here.name, here) as stall:
            through = target.update_query_dict({"host": folder}).render_as_string(hide_password=False)
            registry = Registry(through, PEPPERS)
            try:
                yield registry, stall
            finally:
                stall.resume()
                await registry.close()


@on_postgresql
async def test_a_poll_of_a_paused_database_is_given_up_and_all_is_well_when_it_answers(world: World, url: str) -> None:
    async with behind_a_stall(url) as (registry, stall):
        source = SnapshotSource(registry.database, PEPPERS, poll_timeout=0.3)
        await source.start()
        stall.pause()
        for _ in range(3):
            async with asyncio.timeout(5):
                with pytest.raises(Unavailable, match="has not answered for"):
                    await source.refresh()
        assert source.age() > 0.9
        assert names(source) == {"platform"}
        await world.registry.tenants.create(world.admin, "anna")
        stall.resume()
        await source.refresh()
        assert "anna" in names(source)
        assert source.age() < 0.9
        assert source.full_loads == 1


@on_postgresql
async def test_dead_connections_cost_one_poll_however_many_wait_in_the_pool(world: World, url: str) -> None:
    async with behind_a_stall(url) as (registry, stall):
        source = SnapshotSource(registry.database, PEPPERS, poll_timeout=0.3)
        await source.start()
        held = [registry.database.read() for _ in range(4)]
        for each in held:
            await (await each.__aenter__()).connection()
        for each in held:
            await each.__aexit__(None, None, None)
        stall.strand()
        await world.registry.tenants.create(world.admin, "anna")
        with pytest.raises(Unavailable):
            await source.refresh()
        await source.refresh()
        assert "anna" in names(source)


@on_postgresql
async def test_run_ends_while_a_poll_hangs(world: World, url: str) -> None:
    async with behind_a_stall(url) as (registry, stall):
        source = SnapshotSource(registry.database, PEPPERS, poll_seconds=0.01)
        await source.start()
        task = asyncio.create_task(source.run())
        stall.pause()
        await until(lambda: source.age() > 0.2)
        async with asyncio.timeout(2):
            await end(task)

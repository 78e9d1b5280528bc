"""The ledger's sums are the ledger's, however its rows came in; and keys know when they were used."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry import Registry
from lorry.registry.bootstrap import _first_admin
from lorry.registry.usage import repository, service
from lorry.registry.usage.buckets import DURATION_S, INTER_TOKEN_S, TTFT_S, bucket_of
from lorry.registry.usage.service import Usage
from tests.unit.registry.conftest import PEPPERS, TINY_CONFIG, World
from tests.unit.registry.usages import ADAPTER, BASE, NOON, check_sums, kept, usage


@pytest.mark.parametrize("bounds", [TTFT_S, INTER_TOKEN_S, DURATION_S])
def test_a_bound_belongs_to_the_bucket_below_it(bounds: Sequence[float]) -> None:
    assert list(bounds) == sorted(set(bounds))
    for at, bound in enumerate(bounds):
        assert bucket_of(bounds, bound) == at
        assert bucket_of(bounds, bound * 1.0001) == at + 1
    assert bucket_of(bounds, -1.0) == 0


async def test_everything_that_a_row_says_is_kept(world: World) -> None:
    row = usage(
        world.admin.tenant,
        1,
        alias="prod",
        canary=True,
        labels={"team": "é"},
        principal="anna",
        replica="engine-3",
        queue_s=0.25,
        ttft_s=0.5,
        decode_s=1.5,
    )
    await world.registry.usage.write([row])
    (found,) = await kept(world.registry)
    for name in Usage.__dataclass_fields__.keys() - {"charges"}:
        assert getattr(found, name) == getattr(row, name), name


async def test_a_row_that_is_there_is_counted_once(world: World) -> None:
    rows = [usage(world.admin.tenant, i) for i in range(5)]
    ledger = world.registry.usage
    await ledger.write(rows[:3])
    await ledger.write(rows[:3])
    await ledger.write([rows[4], rows[0], rows[4], replace(rows[4], output_tokens=99), rows[3]])
    await ledger.write([])
    assert await ledger.totals(world.admin.tenant) == (5, 15, 20)
    await check_sums(world.registry)


async def test_a_base_goes_by_the_name_that_it_got_first(world: World) -> None:
    tenant = world.admin.tenant
    await world.registry.usage.write([usage(tenant, 0, adapter="", version=0)])
    for name in ("zebra", "aardvark"):
        await world.registry.bases.create(world.admin, name, BASE, "2" * 64, json.dumps(TINY_CONFIG))
    await world.registry.usage.write([usage(tenant, i, adapter="", version=0) for i in (1, 2)])
    async with world.registry.database.read() as session:
        rows = await session.execute(text("SELECT model, requests FROM usage_rollup ORDER BY requests"))
        assert [tuple(row) for row in rows] == [(BASE, 1), ("models/zebra", 2)]


async def test_keys_know_when_they_were_used_last(world: World) -> None:
    key, _ = await world.registry.keys.create(world.admin, "platform", "robot", "platform_admin")
    tenant = world.admin.tenant

    async def used() -> list[Any]:
        async with world.registry.database.read() as session:
            return [tuple(row) for row in await session.execute(text("SELECT key_id, used_at FROM key_use"))]

    await world.registry.usage.write([usage(tenant, 0, key_id="no-such-key")])
    assert await used() == []
    later = NOON + timedelta(hours=2)
    await world.registry.usage.write(
        [usage(tenant, i, key_id=key.id, ended_at=at) for i, at in ((1, NOON), (2, later))]
    )
    (first,) = await used()
    await world.registry.usage.write([usage(tenant, 3, key_id=key.id, ended_at=NOON + timedelta(hours=1))])
    assert await used() == [first], "an older use changes nothing"
    await world.registry.usage.write([usage(tenant, 4, key_id=key.id, ended_at=later + timedelta(hours=1))])
    ((name, at),) = await used()
    assert (name, at != first[1]) == (key.id, True)


async def test_a_write_that_breaks_off_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [usage(world.admin.tenant, i) for i in range(3)]

    async def broken(session: AsyncSession, used: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(repository, "touch_keys", broken)
        with pytest.raises(RuntimeError):
            await world.registry.usage.write(rows)
    assert await kept(world.registry) == []
    await check_sums(world.registry)
    await world.registry.usage.write(rows)
    assert len(await kept(world.registry)) == 3
    await check_sums(world.registry)


async def test_rows_of_before_the_sums_are_added_up_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a gateway of the release before writes them: rows alone."""
    monkeypatch.setattr(service, "PAGE", 4)
    ledger, tenant = world.registry.usage, world.admin.tenant
    other: Any = (await world.registry.tenants.create(world.admin, "bert")).id
    await ledger.write([usage(tenant, 0), usage(other, 1)])
    assert await ledger.reconcile() == 0
    old = [usage(tenant, i, adapter="" if i % 2 else ADAPTER, ended_at=NOON) for i in range(10, 21)]
    async with world.registry.database.write() as session:
        assert len(await repository.append(session, old)) == 11
    await asyncio.gather(ledger.reconcile(), ledger.write([usage(tenant, 5)]), ledger.write([usage(other, 6)]))
    assert await ledger.reconcile() == 0
    await check_sums(world.registry)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_sums_made_anew_keep_writers_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite has one writer at a time anyway."""
    ledger, tenant = world.registry.usage, world.admin.tenant
    async with world.registry.database.write() as session:
        await repository.append(session, [usage(tenant, i) for i in range(3)])
    read, writing = repository.export_page, asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        found = await read(*arguments)
        if not writing.is_set():
            writing.set()
            done, _ = await asyncio.wait([write], timeout=0.5)
            assert not done, "it must wait for the sums that are being made"
        return found

    async def add() -> None:
        await writing.wait()
        await ledger.write([usage(tenant, 3)])

    write = asyncio.create_task(add())
    with monkeypatch.context() as patch:
        patch.setattr(repository, "export_page", slow)
        assert await ledger.reconcile() == 1
    await write
    await check_sums(world.registry)


async def test_two_gateways_at_the_same_rows_and_sums_wait_in_no_circle(world: World, url: str) -> None:
    """Each writes the same batches in another order, into sums that most of them share."""
    other = Registry(url, PEPPERS)
    rows = [usage(world.admin.tenant, i, outcome=f"O{i % 7}", key_id=f"k{i % 3}") for i in range(120)]
    batches = [rows[at : at + 12] for at in range(0, 120, 6)]

    async def run(ledger: Any, order: list[list[Usage]]) -> None:
        for batch in order:
            await ledger.write(batch)

    async with asyncio.timeout(100):
        await asyncio.gather(
            run(world.registry.usage, batches),
            run(other.usage, batches[::-1]),
            run(other.usage, [batch[::-1] for batch in batches[::2]]),
        )
    await other.close()
    assert (await world.registry.usage.totals(world.admin.tenant))[0] == 120
    await check_sums(world.registry)


@asynccontextmanager
async def held(world: World, *writes: list[Usage]) -> AsyncIterator[AsyncSession]:
    """Lets go of what the block takes once every writer of ``writes``, which begin after the block, waits
    for a lock. All of them must come to their end then."""
    database = world.registry.database

    async def waiting() -> int:
        async with database.read() as session:
            return int((await session.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted"))).scalar_one())

    async with database._write() as session:
        yield session
        writers = [asyncio.create_task(world.registry.usage.write(rows)) for rows in writes]
        async with asyncio.timeout(20):
            while await waiting() < len(writes):
                await asyncio.sleep(0.01)
        await session.rollback()
    await asyncio.gather(*writers)
    await check_sums(world.registry)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_writers_of_the_same_rows_lock_them_in_one_order(world: World) -> None:
    """They come upon a row that a third holds, one from below and one from above."""
    rows = [usage(world.admin.tenant, i) for i in range(9)]
    async with held(world, rows, rows[::-1]) as session:
        await repository.append(session, [rows[4]])


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_writers_of_one_sum_add_to_each_other(world: World) -> None:
    tenant = world.admin.tenant
    await world.registry.usage.write([usage(tenant, 0)])
    async with held(world, [usage(tenant, 1)], [usage(tenant, 2)]) as session:
        await session.execute(text("UPDATE usage_rollup SET requests = requests"))


ROWS = st.lists(
    st.tuples(
        st.integers(0, 11),  # which ledger id
        st.sampled_from([0, 1, 5, 3000]),  # output tokens
        st.sampled_from(["OK", "CANCELLED"]),
        st.sampled_from([None, 0.0, 0.005, 0.0051, 3.0, 1e4]),  # ttft and decode
        st.integers(0, 3),  # hour
    ),
    max_size=12,
)
WRITES = st.lists(st.tuples(ROWS, st.sampled_from(["kept", "killed", "killed late", "repeated"])), max_size=8)


@given(WRITES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sums_are_the_ledgers_however_rows_come(sqlite_template: Path, tmp_path: Path, writes: Any) -> None:
    """Batches that are repeated, overlap, come in any order, and break off before the commit."""
    path = tmp_path / "registry.db"
    for old in tmp_path.glob("registry.db*"):
        old.unlink()
    shutil.copy(sqlite_template, path)
    asyncio.run(_write_all(f"sqlite:///{path}", writes))


async def _write_all(url: str, writes: Any) -> None:
    registry = Registry(url, PEPPERS)
    try:
        await _first_admin(registry.database, PEPPERS)
        async with registry.database.read() as session:
            tenant: Any = (await session.execute(text("SELECT id FROM tenant"))).scalar_one()
        for shapes, fate in writes:
            rows = [
                usage(
                    tenant,
                    number,
                    output_tokens=tokens,
                    outcome=outcome,
                    ttft_s=seconds,
                    decode_s=seconds,
                    ended_at=NOON + timedelta(hours=hour, microseconds=number),
                )
                for number, tokens, outcome, seconds, hour in shapes
            ]
            await _write(registry, rows, fate)
            await check_sums(registry)
    finally:
        await registry.close()


async def _write(registry: Registry, rows: list[Usage], fate: str) -> None:
    if fate.startswith("killed"):
        with pytest.MonkeyPatch.context() as patch:

            async def die(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(repository, "touch_keys" if fate == "killed late" else "add_sums", die)
            try:
                await registry.usage.write(rows)
            except KeyboardInterrupt:
                return
        return
    await registry.usage.write(rows)
    if fate == "repeated":
        await registry.usage.write(rows[::-1])

"""Deltas: what a poll makes of the change log is what a full load would, and revocations hold at the next poll."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, select, text, update
from sqlalchemy.util import await_only

from lorry import errors
from lorry.registry import Snapshot, SnapshotSource, VersionState
from lorry.registry import changes as change_log
from lorry.registry import source as source_module
from lorry.registry.changes import Change, Kind
from lorry.registry.db.tables import Tenant
from lorry.registry.loading import everything
from lorry.registry.tables import Rows
from tests.support.waiting import end
from tests.unit.registry.conftest import NOW, PEPPERS, World
from tests.unit.registry.deltas import FOO, NEW, add_version, equals_full_load
from tests.unit.registry.test_migrations import make_version


async def test_before_the_first_load(world: World) -> None:
    with pytest.raises(errors.Unavailable):
        world.registry.snapshots().current()


async def test_revocations_hold_at_the_next_poll(world: World) -> None:
    registry, admin = world.registry, world.admin
    await registry.tenants.create(admin, "anna")
    key = await world.key("anna")
    await add_version(world)
    grant = await registry.grants.create(admin, "anna", FOO.bare)
    snapshot = await world.source.refresh()
    anna = snapshot.authenticate(key, NOW)
    assert snapshot.resolve(anna, FOO.bare, "", NOW).version == 1

    await registry.grants.revoke(admin, "anna", grant.id)
    now = grant.created_at.timestamp() + 10
    with pytest.raises(errors.GrantRevoked):
        (await world.source.refresh()).resolve(anna, FOO.bare, "", now)

    again = await registry.grants.create(admin, "anna", FOO.bare)
    assert again.id != grant.id
    assert (await world.source.refresh()).resolve(anna, FOO.bare, "", now).version == 1
    await registry.grants.revoke(admin, "anna", grant.id)  # the old row again: the new grant stands
    assert (await world.source.refresh()).resolve(anna, FOO.bare, "", now).version == 1

    await registry.tenants.update(admin, "anna", ["suspended"], suspended=True)
    with pytest.raises(errors.TenantSuspended):
        (await world.source.refresh()).authenticate(key, NOW)
    await registry.tenants.update(admin, "anna", ["suspended"], suspended=False)
    await registry.keys.revoke(admin, "anna", anna.key_id)
    with pytest.raises(errors.Unauthenticated):
        (await world.source.refresh()).authenticate(key, NOW)
    await equals_full_load(world)


async def test_a_gap_reloads_everything(world: World) -> None:
    await world.registry.tenants.create(world.admin, "anna")
    async with world.registry.database.write() as session:
        await session.execute(text("DELETE FROM change_log"))
    await world.registry.tenants.create(world.admin, "bert")
    snapshot = await world.source.refresh()
    assert world.source.full_loads == 2
    assert {t.name for t in snapshot.tables.tenants.values()} == {"platform", "anna", "bert"}


async def test_a_long_absence_is_read_in_whole_epochs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """More changes than are read at once are still deltas, however the epochs' rows fall; one huge epoch is not."""
    monkeypatch.setattr(source_module, "DELTA_ROWS", 5)
    for number in range(6):
        await world.registry.tenants.create(world.admin, f"t{number}")
        await add_version(world)  # of two changes
    await equals_full_load(world)
    async with world.registry.database.write() as session:
        rows = (await session.execute(select(Tenant.id))).scalars()
        await change_log.record(session, *(Change(Kind.TENANT, row) for row in rows))
    await world.source.refresh()
    assert world.source.full_loads == 2


async def test_an_epoch_that_is_read_in_part_is_not_applied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "DELTA_ROWS", 5)
    for name in ("a1", "a2", "a3", "b1", "b2", "b3"):
        await world.registry.tenants.create(world.admin, name)
    await world.source.refresh()
    for letter in "ab":  # two epochs of three changes: the second is read in part
        of_letter = Tenant.name.like(f"{letter}%")
        async with world.registry.database.write() as session:
            await session.execute(update(Tenant).where(of_letter).values(suspended=True))
            rows = (await session.execute(select(Tenant.id).where(of_letter))).scalars()
            await change_log.record(session, *(Change(Kind.TENANT, row) for row in rows))
    await equals_full_load(world)


async def test_a_database_that_was_set_back_is_read_anew(world: World) -> None:
    await world.registry.tenants.create(world.admin, "anna")
    assert (await world.source.refresh()).epoch > 1
    async with world.registry.database.write() as session:
        await session.execute(text("DELETE FROM change_log"))
        await session.execute(text("UPDATE registry_epoch SET epoch = 0"))
        await session.execute(text("UPDATE tenant SET suspended = true WHERE name = 'anna'"))
    snapshot = await world.source.refresh()
    assert snapshot.epoch == 0
    assert [t.suspended for t in snapshot.tables.tenants.values() if t.name == "anna"] == [True]


async def test_nothing_changed_is_no_epoch(world: World) -> None:
    before = (await world.source.refresh()).epoch
    async with world.registry.database.write() as session:
        assert await change_log.record(session) == before
    assert (await world.source.refresh()).epoch == before


async def test_a_full_load_is_of_one_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed while it reads is not in it, in any table, and comes with the next delta."""
    monkeypatch.setattr(source_module, "everything", _slow_everything(world))
    snapshot = await (source := world.registry.snapshots()).start()
    assert {t.name for t in snapshot.tables.tenants.values()} == {"platform"}
    assert len(snapshot.tables.keys) == 1
    assert {t.name for t in (await source.refresh()).tables.tenants.values()} == {"platform", "late"}
    assert source.full_loads == 1


def _slow_everything(world: World) -> Callable[[Connection], Iterator[Rows]]:
    loop = asyncio.get_running_loop()

    async def change() -> None:
        await world.registry.tenants.create(world.admin, "late")
        await world.key("late")

    def load(connection: Connection) -> Iterator[Rows]:
        if threading.current_thread() is threading.main_thread():
            await_only(change())
        else:
            asyncio.run_coroutine_threadsafe(change(), loop).result()
        yield from everything(connection)

    return load


async def test_a_kind_of_a_newer_release_reloads_everything(world: World) -> None:
    async with world.registry.database.write() as session:
        await change_log.record(session, Change("rollout", "x"))  # type: ignore[arg-type]  # no kind of this release
    await world.source.refresh()
    assert world.source.full_loads == 2


async def test_no_change_no_new_snapshot(world: World) -> None:
    first = await world.source.refresh()
    assert await world.source.refresh() is first


async def test_a_failed_transaction_leaves_no_epoch(world: World) -> None:
    before = (await world.source.refresh()).epoch
    with pytest.raises(errors.AlreadyExists):
        await world.registry.tenants.create(world.admin, "platform")
    assert (await world.source.refresh()).epoch == before
    await world.registry.tenants.create(world.admin, "anna")
    assert (await world.source.refresh()).epoch == before + 1
    assert world.source.full_loads == 1


async def test_epochs_are_gap_free_under_concurrency(world: World) -> None:
    before = (await world.source.refresh()).epoch
    await asyncio.gather(*(world.registry.tenants.create(world.admin, f"t{i}") for i in range(8)))
    assert (await world.source.refresh()).epoch == before + 8
    # Reads before it writes: without the write lock from the start SQLite would refuse all but one.
    await asyncio.gather(*(world.key(f"t{i}") for i in range(8)))
    await equals_full_load(world)


async def test_equal_requests_at_once_conflict_or_agree(world: World) -> None:
    await add_version(world)
    await world.registry.tenants.create(world.admin, "anna")
    found = await asyncio.gather(
        *(world.registry.grants.create(world.admin, "anna", FOO.bare) for _ in range(4)),
        *(world.registry.aliases.set(world.admin, NEW, 1) for _ in range(4)),
        return_exceptions=True,
    )
    failed = [each for each in found if isinstance(each, BaseException)]
    assert all(isinstance(each, errors.StaleEtag) for each in failed)
    assert len(failed) < len(found)
    await equals_full_load(world)


async def test_files_that_do_not_hash_to_the_digest_are_not_served(world: World) -> None:
    version = await make_version(world)
    async with world.registry.database.write() as session:
        await session.execute(
            text("INSERT INTO adapter_file (version_id, path, size_bytes, sha256) VALUES (:id, 'c', 1, :sha)"),
            {"id": version, "sha": "c" * 64},
        )
    snapshot = await world.registry.snapshots().start()
    (adapter,) = snapshot.tables.adapters.values()
    assert adapter.versions[1].state is VersionState.QUARANTINED


async def test_run_survives_an_unreachable_database(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The poll loop keeps the last snapshot, and goes on when the database answers again."""
    source = SnapshotSource(world.registry.database, PEPPERS, poll_seconds=0.001)
    await source.start()
    read, polls, fail = source._read, asyncio.Semaphore(0), True

    async def flaky() -> Snapshot:
        polls.release()
        if fail:
            raise OSError("no route")
        return await read()

    source._read = flaky  # type: ignore[method-assign]  # it stands in between
    task = asyncio.create_task(source.run())
    for _ in range(3):
        await polls.acquire()
    assert source.current().epoch > 0
    assert caplog.text.count("cannot be read") == 1
    fail = False
    await world.registry.tenants.create(world.admin, "anna")
    while "anna" not in {t.name for t in source.current().tables.tenants.values()}:
        await polls.acquire()
    await end(task)


async def test_the_event_loop_turns_after_each_part_of_a_full_load(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that are ready are no reason to hold it, though no statement lies between them."""
    turns, seen = 0, []

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def parts(connection: Connection) -> Iterator[Rows]:
        for _ in range(50):
            seen.append(turns)
            yield Rows()

    monkeypatch.setattr(source_module, "everything", parts)
    task = asyncio.create_task(turning())
    await world.registry.snapshots().start()
    await end(task)
    if world.registry.database.engine.dialect.name == "postgresql":  # SQLite's runs beside it, on a thread
        assert all(later > before for before, later in itertools.pairwise(seen))
    assert len(seen) == 50


async def test_how_long_changes_were_unknown_is_counted_for_each_poll_that_brought_some(world: World) -> None:
    now = [100.0]
    source = SnapshotSource(world.registry.database, PEPPERS, clock=lambda: now[0])
    await source.start()
    now[0] += 3.0
    await source.refresh()
    assert source.lag.spread().count == 0, "nothing had changed"
    now[0] += 0.2
    await world.registry.tenants.create(world.admin, "anna")
    await world.registry.tenants.create(world.admin, "bert")
    await source.refresh()
    assert source.lag.spread().count == 1
    assert source.lag.total == pytest.approx(0.2)

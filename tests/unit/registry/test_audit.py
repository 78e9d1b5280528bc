"""The chain of audit events: sealed whatever happens, gapless under load, and no tampering goes unnamed."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import lorry.registry
from lorry.errors import InvalidRequest, ResourceNotFound, RoleTooLow
from lorry.registry import PageRequest, audit
from lorry.registry.audit import service
from lorry.registry.audit.chain import GENESIS, Event, event_hash
from tests.unit.registry.conftest import NOW, World, database, opened

NO_PAGE = PageRequest.of(0, "")
CHAIN = ("audit_event", "audit_head")
INDEX = "CREATE UNIQUE INDEX IF NOT EXISTS uq_audit_event_sequence ON audit_event (tenant_id, sequence)"


async def events_of(world: World, tenant: str = "anna") -> list[Any]:
    return list((await world.registry.audit.list(world.admin, tenant, NO_PAGE)).rows)


async def noted(world: World, *subjects: str) -> None:
    """Events of tenant anna in one transaction each."""
    tenant = (await world.registry.tenants.get(world.admin, "anna")).id
    for subject in subjects:
        async with world.registry.database.write() as session:
            audit.append(session, tenant, world.admin, "test.done", subject, n=[1, 2.5, None], text="é\n")  # type: ignore[arg-type]  # the test's own tenant


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def chain(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A database with ten events of anna, sequences 1 to 10, a copy of them, and triggers that hold nobody back; and
    its administrator's key."""
    with database(request) as url:
        yield url, asyncio.run(_make_chain(url))


async def _make_chain(url: str) -> str:
    async with opened(url) as world:
        await world.registry.tenants.create(world.admin, "anna")
        await noted(world, *(f"s{i}" for i in range(2, 11)))
        async with world.registry.database.write() as session:
            if session.get_bind().dialect.name == "postgresql":
                await session.execute(text("ALTER TABLE audit_event DISABLE TRIGGER USER"))
            else:
                query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit_event'"
                for name in (await session.execute(text(query))).scalars().all():
                    await session.execute(text(f"DROP TRIGGER {name}"))
        await change(world, *(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}" for table in CHAIN))
        return world.admin_key


@pytest.fixture
async def chained(chain: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """It is looked at three at a time, and as it was made again afterwards."""
    monkeypatch.setattr(service, "PAGE", 3)
    async with opened(*chain) as world:
        yield world
        for table in CHAIN:
            await change(world, f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM kept_{table}")
        await change(world, INDEX)


async def change(world: World, *statements: str) -> None:
    async with world.registry.database.write() as session:
        for statement in statements:
            await session.execute(text(statement))


async def test_an_untouched_chain_is_intact(chained: World) -> None:
    found = await chained.registry.audit.verify(chained.admin, "anna")
    events = await events_of(chained)
    assert [row.sequence for row in events] == list(range(10, 0, -1))
    assert (found.intact, found.events, found.broken_sequence, found.problem) == (True, 10, 0, "")
    assert found.head_hash == events[0].hash
    for row, before in zip(events, [*(row.hash for row in events[1:]), GENESIS], strict=True):
        event = Event(
            row.tenant_id, row.sequence, row.id, row.actor_key_id, row.action, row.subject, row.details, row.created_at
        )
        assert row.hash == event_hash(before, event)
    again = await chained.registry.audit.verify(chained.admin, "anna", events[4].hash, events[4].sequence)
    assert again == found


def test_hashes_depend_on_every_field() -> None:
    event = Event("t", 1, "i", "a", "b", "c", {"x": 1}, datetime(2026, 1, 1, tzinfo=UTC))
    others = [
        replace(event, tenant="u"),
        replace(event, sequence=2),
        replace(event, id="j"),
        replace(event, actor="ab", action=""),
        replace(event, action="bc", subject=""),
        replace(event, details={"x": "1"}),
        replace(event, details={"x": 1, "y": None}),
        replace(event, created_at=datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)),
    ]
    hashes = [event_hash(GENESIS, one) for one in [event, *others]] + [event_hash("1" * 64, event)]
    assert len(set(hashes)) == 10
    elsewhere = replace(event, created_at=event.created_at.astimezone(timezone(timedelta(hours=5))))
    assert event_hash(GENESIS, elsewhere) == hashes[0]
    assert hashes[0] == "3433431186c9a020a32f299e69d7d6eca29e4b0ae972ca7559dd21173248438f", (
        "noted hashes must go on holding"
    )


IN_ANNA = "tenant_id = (SELECT id FROM tenant WHERE name = 'anna')"
ROW = f"{IN_ANNA} AND sequence ="
HEAD = f"UPDATE audit_head SET sequence = {{}}, hash = (SELECT hash FROM audit_event WHERE {ROW} {{}}) WHERE {IN_ANNA}"
COPIED = (
    "INSERT INTO audit_event (id, tenant_id, actor_key_id, action, subject, details, created_at, sequence, hash) "
    "SELECT 'au_more', tenant_id, actor_key_id, action, subject, details, created_at, {}, hash "
    f"FROM audit_event WHERE {ROW} {{}}"
)
NO_INDEX = "DROP INDEX uq_audit_event_sequence"
OTHER = "(SELECT id FROM tenant WHERE name = 'platform')"
SHA = "'" + "a" * 64 + "'"
TAMPERING: dict[str, tuple[int, tuple[str, ...]]] = {
    "actor": (4, (f"UPDATE audit_event SET actor_key_id = 'system' WHERE {ROW} 4",)),
    "action": (1, (f"UPDATE audit_event SET action = 'tenant.undo' WHERE {ROW} 1",)),
    "subject": (10, (f"UPDATE audit_event SET subject = 's11' WHERE {ROW} 10",)),
    "details": (3, (f"UPDATE audit_event SET details = '{{\"n\": 2}}' WHERE {ROW} 3",)),
    "time": (5, (f"UPDATE audit_event SET created_at = '2026-01-01 00:00:00.000001' WHERE {ROW} 5",)),
    "id": (6, (f"UPDATE audit_event SET id = 'au_other' WHERE {ROW} 6",)),
    "hash": (7, (f"UPDATE audit_event SET hash = {SHA} WHERE {ROW} 7",)),
    "no hash": (7, (f"UPDATE audit_event SET hash = NULL WHERE {ROW} 7",)),
    "taken out of the chain": (8, (f"UPDATE audit_event SET sequence = NULL, hash = NULL WHERE {ROW} 8",)),
    "removed": (4, (f"DELETE FROM audit_event WHERE {ROW} 4",)),
    "removed at the front": (1, (f"DELETE FROM audit_event WHERE {ROW} 1",)),
    "removed and closed up": (
        4,
        (
            f"DELETE FROM audit_event WHERE {ROW} 4",
            *(f"UPDATE audit_event SET sequence = {n - 1} WHERE {ROW} {n}" for n in range(5, 11)),
            HEAD.format(9, 9),
        ),
    ),
    "another tenant's": (2, (f"UPDATE audit_event SET tenant_id = {OTHER}, sequence = 99 WHERE {ROW} 2",)),
    "reordered": (
        5,
        (
            f"UPDATE audit_event SET sequence = 99 WHERE {ROW} 5",
            f"UPDATE audit_event SET sequence = 5 WHERE {ROW} 6",
            f"UPDATE audit_event SET sequence = 6 WHERE {ROW} 99",
        ),
    ),
    "one more": (4, (NO_INDEX, COPIED.format(4, 4))),
    "one more over a page's edge": (3, (NO_INDEX, COPIED.format(3, 3))),
    "one more in front": (1, (COPIED.format(-7, 1),)),
    "one more at the end": (11, (COPIED.format(11, 10),)),
    "one more far off": (11, (COPIED.format(99, 10),)),
    "the tail cut": (9, (f"DELETE FROM audit_event WHERE {IN_ANNA} AND sequence > 8",)),
    "all of it cut": (1, (f"DELETE FROM audit_event WHERE {IN_ANNA}",)),
    "the head moved back": (9, (HEAD.format(8, 8),)),
    "the head's hash": (10, (f"UPDATE audit_head SET hash = {SHA} WHERE {IN_ANNA}",)),
    "the head gone": (1, (f"DELETE FROM audit_head WHERE {IN_ANNA}",)),
}


GONE = {"removed", "removed at the front", "taken out of the chain", "another tenant's"}


@pytest.mark.parametrize("kind", TAMPERING)
async def test_tampering_is_found_and_named(chained: World, kind: str) -> None:
    sequence, statements = TAMPERING[kind]
    await change(chained, *statements)
    found = await chained.registry.audit.verify(chained.admin, "anna")
    assert not found.intact
    assert (found.broken_sequence, bool(found.problem)) == (sequence, True), found.problem
    assert ("is gone" in found.problem) is (kind in GONE)
    assert (await chained.registry.audit.verify(chained.admin, "platform")).intact is (kind != "another tenant's")


@pytest.mark.parametrize("chain", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("column", "value"), [("details", "'{no json'"), ("created_at", "'some day'")])
async def test_what_cannot_be_read_is_named(chained: World, column: str, value: str) -> None:
    """PostgreSQL's types refuse such values by themselves."""
    await change(chained, f"UPDATE audit_event SET {column} = {value} WHERE {ROW} 5")
    found = await chained.registry.audit.verify(chained.admin, "anna")
    assert (found.intact, found.events, found.broken_sequence) == (False, 4, 5)


async def test_a_noted_hash_finds_a_chain_that_was_written_anew(chained: World) -> None:
    registry, admin = chained.registry, chained.admin
    newest, *_, first = await events_of(chained)
    await change(chained, f"DELETE FROM audit_event WHERE {IN_ANNA} AND sequence > 8", HEAD.format(8, 8))
    assert (await registry.audit.verify(admin, "anna")).intact, "nothing in the database says otherwise"
    found = await registry.audit.verify(admin, "anna", newest.hash, newest.sequence)
    assert (found.intact, found.broken_sequence) == (False, 10)
    assert newest.hash in found.problem
    found = await registry.audit.verify(admin, "anna", "b" * 64, 1)
    assert (found.intact, found.broken_sequence) == (False, 1)
    assert (await registry.audit.verify(admin, "anna", first.hash, 1)).intact
    for given in (("b" * 64, 0), ("", 3), ("B" * 64, 3), ("b" * 64, -1), ("b" * 64, 1 << 64)):
        with pytest.raises(InvalidRequest):
            await registry.audit.verify(admin, "anna", *given)


async def test_events_of_before_the_chain_are_counted_and_listed_last(chained: World) -> None:
    await change(
        chained,
        *(
            "INSERT INTO audit_event (id, tenant_id, actor_key_id, action, subject, details, created_at) "
            f"SELECT 'au_0{n}', id, 'k', 'old', 's', '{{}}', '2026-01-01' FROM tenant WHERE name = 'anna'"
            for n in range(3)
        ),
    )
    found = await chained.registry.audit.verify(chained.admin, "anna")
    assert (found.intact, found.broken_sequence, found.problem[:8]) == (True, 0, "3 events")
    shown: list[Any] = []
    page = PageRequest.of(3, "")
    while True:
        answer = await chained.registry.audit.list(chained.admin, "anna", page)
        shown += answer.rows
        if not answer.next_token:
            break
        page = PageRequest.of(3, answer.next_token)
    assert [row.sequence for row in shown] == [*range(10, 0, -1), None, None, None]
    assert [row.id for row in shown[-3:]] == ["au_02", "au_01", "au_00"]
    for token in ("czEy", "bmljZQ==", "cy4="):
        with pytest.raises(InvalidRequest):
            await chained.registry.audit.list(chained.admin, "anna", PageRequest.of(3, token))


async def test_parallel_changes_make_one_gapless_chain(world: World) -> None:
    await world.registry.tenants.create(world.admin, "anna")
    keys = world.registry.keys
    await asyncio.gather(*(keys.create(world.admin, "anna", f"p{i}", "member") for i in range(50)))
    found = await world.registry.audit.verify(world.admin, "anna")
    assert (found.intact, found.events) == (True, 51)
    events = await events_of(world)
    assert [row.sequence for row in events] == list(range(51, 0, -1))


async def test_one_transaction_may_have_events_of_several_tenants_and_two_of_them_never_wait_in_a_circle(
    world: World,
) -> None:
    tenants = [(await world.registry.tenants.create(world.admin, name)).id for name in ("anna", "bert")]

    async def both(order: list[Any]) -> None:
        async with world.registry.database.write() as session:
            for tenant in order:
                audit.append(session, tenant, world.admin, "test.done", "s")
                await session.flush()

    async with asyncio.timeout(60):
        await asyncio.gather(*(both(tenants[:: 1 if i % 2 else -1]) for i in range(30)))
    for name in ("anna", "bert"):
        found = await world.registry.audit.verify(world.admin, name)
        assert (found.intact, found.events) == (True, 31)


async def test_an_event_is_there_with_its_transaction_alone(world: World) -> None:
    await world.registry.tenants.create(world.admin, "anna")
    tenant: Any = (await world.registry.tenants.get(world.admin, "anna")).id
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the error must leave through the block
        async with world.registry.database.write() as session:
            audit.append(session, tenant, world.admin, "test.lost", "s")
            raise ZeroDivisionError
    async with world.registry.database.write() as session:
        audit.append(session, tenant, world.admin, "test.kept", "before")
        async with session.begin_nested() as part:
            with pytest.raises(RuntimeError, match="savepoint"):
                audit.append(session, tenant, world.admin, "test.part", "s")
            await part.rollback()
        async with session.begin_nested():
            pass
        audit.append(session, tenant, world.admin, "test.kept", "after")
    async with world.registry.database.read() as session:
        with pytest.raises(RuntimeError, match=r"Database\.write"):
            audit.append(session, tenant, world.admin, "test.read", "s")
    events = await events_of(world)
    assert [(row.action, row.subject) for row in reversed(events[:2])] == [
        ("test.kept", "before"),
        ("test.kept", "after"),
    ]
    assert len(events) == 3
    assert (await world.registry.audit.verify(world.admin, "anna")).intact


async def test_a_session_that_goes_on_after_a_rollback_has_forgotten_what_it_noted(world: World) -> None:
    tenant: Any = (await world.registry.tenants.create(world.admin, "anna")).id
    async with world.registry.database._write() as session:
        with pytest.raises(RuntimeError, match="transaction"):
            audit.append(session, tenant, world.admin, "test.lost", "s")
        await session.begin()
        audit.append(session, tenant, world.admin, "test.lost", "s")
        await session.rollback()
        await session.begin()
        audit.append(session, tenant, world.admin, "test.kept", "s")
        await session.commit()
    assert [row.action for row in await events_of(world)] == ["test.kept", "tenant.create"]


async def test_who_may_read_and_verify(world: World) -> None:
    for name in ("anna", "bert"):
        await world.registry.tenants.create(world.admin, name)
    service = world.registry.audit
    keys = [await world.key(*who) for who in (("anna",), ("anna", "member"), ("bert",))]
    snapshot = await world.source.refresh()
    owner, member, stranger = (snapshot.authenticate(key, NOW) for key in keys)
    assert (await service.verify(owner, "anna")).intact
    assert (await service.list(owner, "anna", NO_PAGE)).rows
    for method in (service.verify, lambda caller, name: service.list(caller, name, NO_PAGE)):
        with pytest.raises(RoleTooLow):
            await method(member, "anna")
        for caller, name in ((stranger, "anna"), (owner, "nobody"), (owner, "platform")):
            with pytest.raises(ResourceNotFound):
                await method(caller, name)


NOTED_ELSEWHERE = {
    "bootstrap.py:issue_admin_key",  # by its helper _admin_key
    "adapters/lifecycle.py:_destroy",  # a step of a purge, which is noted with its receipt
}


def _calls(node: ast.AST, module: str, name: str) -> bool:
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr == name
        and isinstance(one.func.value, ast.Name)
        and one.func.value.id == module
        for one in ast.walk(node)
    )


def test_whoever_records_a_change_notes_it_for_the_audit() -> None:
    """In the same function, or in the helpers named here."""
    root = Path(str(lorry.registry.__file__)).parent
    silent = []
    for path in root.rglob("*.py"):
        source = path.read_text()
        tree = ast.parse(source if "changes.record(" in source else "")
        for function in ast.walk(tree):
            if (
                isinstance(function, ast.AsyncFunctionDef)
                and _calls(function, "changes", "record")
                and not _calls(function, "audit", "append")
            ):
                silent.append(f"{path.relative_to(root)}:{function.name}")
    assert set(silent) <= NOTED_ELSEWHERE


def test_events_are_made_in_one_place() -> None:
    root = Path(str(lorry.registry.__file__)).parent.parent
    places = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "AuditEvent(" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "AuditEvent"
    ]
    assert places == ["registry/audit/repository.py"]

"""The migrations: no difference to the tables, up and down with data, and triggers that hold against SQL."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from typing import Any

import pytest
from alembic import command
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from lorry.adapters.manifest import AdapterFile, files_digest
from lorry.adapters.plan import TextPlan
from lorry.adapters.report import Accepted
from lorry.errors import StaleEtag
from lorry.registry import Registry, alembic_config, migrate, migrate_sync
from lorry.registry.adapters import repository as adapters
from lorry.registry.bases import repository as bases
from lorry.registry.entries import VersionState
from tests.unit.registry.conftest import PEPPERS, TINY_CONFIG, World

FILES = (AdapterFile("a.bin", 3, "a" * 64), AdapterFile("b.bin", 4, "b" * 64))


def test_no_difference_to_the_tables(url: str) -> None:
    command.check(alembic_config(url))


def test_up_down_up(empty_url: str) -> None:
    migrate_sync(empty_url)
    command.downgrade(alembic_config(empty_url), "base")
    migrate_sync(empty_url)
    command.check(alembic_config(empty_url))


async def test_two_migrators_at_once_in_one_process(empty_url: str) -> None:
    await asyncio.gather(migrate(empty_url), migrate(empty_url))
    await asyncio.to_thread(command.check, alembic_config(empty_url))


def test_migrators_of_two_processes(empty_url: str) -> None:
    code = "import sys; from lorry.registry import migrate_sync; migrate_sync(sys.argv[1])"
    both = [subprocess.Popen([sys.executable, "-c", code, empty_url], stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr.decode()
    command.check(alembic_config(empty_url))


async def make_version(
    world: World, state: VersionState = VersionState.READY, name: str = "a", accepted: Accepted | None = None
) -> str:
    """A version without objects behind it; answers its row's id."""
    tenant = world.admin.tenant
    async with world.registry.database.write() as session:
        base = await bases.find(session, "tiny") or await bases.insert(
            session, "tiny", "1" * 64, "2" * 64, 256, TINY_CONFIG
        )
        adapter = await adapters.find_adapter(session, tenant, name) or await adapters.insert_adapter(
            session, tenant, name, ""
        )
        number = await adapters.next_number(session, tenant, adapter.id)
        row = await adapters.insert_version(
            session,
            adapter.id,
            number,
            base_model_id=base.id,
            sha256=files_digest(FILES),
            prefix="p",
            files=FILES,
            rank=8,
            report={"checks": []},
            state=state,
            state_reason="",
            created_by="k",
            accepted=accepted,
        )
        if state is VersionState.READY:
            await adapters.set_alias(session, adapter, "prod", number, "k")
        return row.id


async def test_a_version_keeps_what_validation_found_of_its_text(world: World) -> None:
    text_side = TextPlan("e" * 64, 12, (3, 5))
    await make_version(world)
    await make_version(world, accepted=Accepted(8, 14, text_side))
    await make_version(world, accepted=Accepted(8, None, TextPlan("e" * 64, 12, ())))
    (found,) = (await world.registry.snapshots().start()).tables.adapters.values()
    plain, own, endless = found.versions.values()
    assert (plain.vocabulary, plain.text) == (None, None)
    assert (own.vocabulary, own.text) == (14, text_side)
    assert (endless.vocabulary, endless.text) == (None, TextPlan("e" * 64, 12, ()))


async def test_rows_from_before_the_text_columns_are_the_bases(world: World, url: str) -> None:
    """As the release before writes them: without the columns. The schema moves back and forth under its rows."""
    await make_version(world)
    await world.registry.database.close()
    await asyncio.to_thread(command.downgrade, alembic_config(url), "0001")
    await migrate(url)
    registry = Registry(url, PEPPERS)
    (adapter,) = (await registry.snapshots().start()).tables.adapters.values()
    found = adapter.versions[1]
    assert (found.vocabulary, found.text, found.state) == (None, None, VersionState.READY)
    await registry.close()


async def test_downgrade_with_data(world: World, url: str) -> None:
    await make_version(world)
    await world.registry.database.close()
    await asyncio.to_thread(command.downgrade, alembic_config(url), "base")
    await migrate(url)
    async with world.registry.database.read() as session:
        assert (await session.execute(text("SELECT count(*) FROM adapter_version"))).scalar_one() == 0


async def _refused(world: World, statement: str, **values: Any) -> None:
    with pytest.raises((DBAPIError, StaleEtag)) as caught:
        async with world.registry.database.write() as session:
            await session.execute(text(statement), values)
    said = str(caught.value.__cause__ or caught.value)
    assert re.search(r"immutable|FOREIGN KEY|foreign key|CHECK|check constraint", said), said


async def test_content_refuses_updates(world: World) -> None:
    version = await make_version(world)
    changes = {
        "sha256": "'" + "f" * 64 + "'",
        "number": "7",
        "prefix": "'elsewhere'",
        "report": "'{}'",
        "rank": "9",
        "size_bytes": "9",
        "vocabulary": "9",
        "tokenizer_sha256": "'" + "e" * 64 + "'",
        "tokenizer_vocabulary": "9",
        "end_ids": "'[]'",
        "created_by": "'x'",
        "id": "'x'",
    }
    for column, value in changes.items():
        await _refused(world, f"UPDATE adapter_version SET {column} = {value} WHERE id = :id", id=version)
    await _refused(world, "DELETE FROM adapter_version WHERE id = :id", id=version)
    for table in ("adapter_file", "alias_revision", "audit_event"):
        column = {"adapter_file": "sha256", "alias_revision": "number", "audit_event": "action"}[table]
        await _refused_if_any(world, table, column)


async def _refused_if_any(world: World, table: str, column: str) -> None:
    async with world.registry.database.read() as session:
        found = (await session.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one()
    assert found > 0, table
    await _refused(world, f"UPDATE {table} SET {column} = {column}")
    await _refused(world, f"DELETE FROM {table}")


async def test_change_log_and_usage_refuse_updates(world: World) -> None:
    await _refused(world, "UPDATE change_log SET kind = 'x'")


async def test_state_may_change_but_not_out_of_rejected(world: World) -> None:
    ready, rejected = await make_version(world), await make_version(world, VersionState.REJECTED)
    async with world.registry.database.write() as session:
        await session.execute(text("UPDATE adapter_version SET state='QUARANTINED' WHERE id = :id"), {"id": ready})
    await _refused(world, "UPDATE adapter_version SET state = 'READY' WHERE id = :id", id=rejected)
    await _refused(world, "UPDATE adapter_version SET state = 'NONSENSE' WHERE id = :id", id=ready)


async def test_alias_cannot_leave_its_adapter(world: World) -> None:
    await make_version(world)
    await make_version(world)
    await make_version(world, name="other")
    async with world.registry.database.read() as session:
        other = (await session.execute(text("SELECT id FROM adapter WHERE name = 'other'"))).scalar_one()
    await _refused(
        world,
        "INSERT INTO alias_revision (adapter_id, name, revision, number, created_at, created_by)"
        " VALUES (:other, 'prod', 2, 2, '2026-01-01', 'k')",
        other=other,
    )


async def test_foreign_keys_are_on(world: World) -> None:
    await _refused(
        world,
        "INSERT INTO principal (id, tenant_id, name, role, created_at)"
        " VALUES ('x', 'nobody', 'n', 'owner', '2026-01-01')",
    )


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_sqlite_runs_in_wal_mode(world: World) -> None:
    async with world.registry.database.read() as session:
        assert (await session.execute(text("PRAGMA journal_mode"))).scalar_one() == "wal"
        assert (await session.execute(text("PRAGMA busy_timeout"))).scalar_one() == 5000

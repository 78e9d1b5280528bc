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
from lorry.errors import StaleEtag, Unauthenticated, Unavailable
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope
from lorry.registry import PageRequest, Registry, Role, alembic_config, migrate, migrate_sync
from lorry.registry.adapters import repository as adapters
from lorry.registry.aliases import repository as aliases
from lorry.registry.aliases.repository import Target
from lorry.registry.bases import repository as bases
from lorry.registry.entries import VersionState
from lorry.registry.fleet.observed import Places
from lorry.registry.fleet.service import Doing, ReplicaKind, Sighting
from lorry.registry.usage.outcomes import Outcome
from tests.unit.registry.conftest import PEPPERS, TINY_CONFIG, World
from tests.unit.registry.usages import NOON, check_sums, kept, usage

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
            before = await aliases.find(session, tenant, adapter.id, "prod")
            await aliases.append(session, tenant, adapter, "prod", before, Target(number), "k")
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


async def test_copies_of_engines_are_told_anew_after_a_way_back(world: World, url: str) -> None:
    """They are observations, which the release before has no place for; the replicas themselves stay."""
    fleet = world.registry.fleet
    engine = Sighting("engine-a", ReplicaKind.ENGINE, Doing.SERVING)
    held = {AdapterKey(AdapterDigest("a" * 64), AdapterScope(scope)): Places(device=True) for scope in ("ad_1", "ad_2")}
    await fleet.report(engine, held)
    await world.registry.database.close()
    await asyncio.to_thread(command.downgrade, alembic_config(url), "0005")
    async with world.registry.database.read() as session:
        assert (await session.execute(text("SELECT name, state FROM replica_state"))).all() == [("engine-a", "SERVING")]
        assert (await session.execute(text("SELECT count(*) FROM residency"))).scalar_one() == 0
    await world.registry.database.close()
    await migrate(url)
    await asyncio.to_thread(command.check, alembic_config(url))
    again = Registry(url, PEPPERS)
    assert not await again.observed.of_adapters([key.scope for key in held], ())
    await again.fleet.report(engine, held)
    assert {one.adapter for one in await again.observed.of_adapters([key.scope for key in held], ())} == set(held)
    await again.close()


async def test_weights_move_back_and_forth(world: World, url: str) -> None:
    """The release before writes tenants without one: they take turns as all did then."""
    registry, admin = world.registry, world.admin
    await registry.tenants.create(admin, "heavy", weight=100)
    for bad in ("0", "101", "-1", "NULL"):
        await _refused(world, f"UPDATE tenant SET weight = {bad}")
    await registry.database.close()
    await asyncio.to_thread(command.downgrade, alembic_config(url), "0005")
    async with registry.database.write() as session:
        await session.execute(
            text(
                "INSERT INTO tenant (id, name, display_name, suspended, created_at)"
                " VALUES ('tn_old', 'old', '', false, '2026-01-01 00:00:00+00')"
            )
        )
    await registry.database.close()
    await migrate(url)
    again = Registry(url, PEPPERS)
    found = await again.tenants.list(admin, PageRequest.of(0, ""))
    assert {(row.name, row.weight) for row in found.rows} == {("heavy", 1), ("old", 1), ("platform", 1)}
    assert (await again.tenants.update(admin, "old", ["weight"], weight=3)).weight == 3
    await again.close()
    await asyncio.to_thread(command.check, alembic_config(url))


async def _refused(world: World, statement: str, **values: Any) -> None:
    with pytest.raises((DBAPIError, StaleEtag)) as caught:
        async with world.registry.database.write() as session:
            await session.execute(text(statement), values)
    said = str(caught.value.__cause__ or caught.value)
    assert re.search(r"immutable|FOREIGN KEY|foreign key|CHECK|check constraint|NOT NULL|not-null", said), said


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


REVISION = (
    "INSERT INTO alias_revision (adapter_id, name, revision, number, canary_number, canary_permille, origin,"
    " created_at, created_by) SELECT id, 'prod', {0}, '2026-01-01 00:00:00+00', 'k' FROM adapter WHERE name = 'a'"
)
ROLLOUT = (
    "INSERT INTO rollout (id, adapter_id, name, number, canary_number, state, started_at, ended_at, created_by)"
    " SELECT '{0}', id, 'prod', 1, 2, '{1}', '2026-01-01 00:00:00+00', {2}, 'k' FROM adapter WHERE name = 'a'"
)


async def _accepted(world: World, statement: str) -> None:
    async with world.registry.database.write() as session:
        await session.execute(text(statement))


async def test_what_a_revision_can_say(world: World) -> None:
    """``prod`` has revisions 1 and 2, of versions 1 and 2."""
    await make_version(world)
    await make_version(world)
    for values in (
        "3, 1, 2, 0, NULL",  # a canary gets something,
        "3, 1, 2, 1000, NULL",  # not everything,
        "3, 1, NULL, 5, NULL",  # is a version,
        "3, 1, 1, 5, NULL",  # another one,
        "3, 1, 9, 5, NULL",  # of this adapter
        "3, 1, 2, -1, NULL",
        "3, 9, NULL, 0, NULL",
        "0, 1, NULL, 0, NULL",
        "3, 1, NULL, 0, 3",  # an origin lies before it,
        "3, 1, NULL, 0, 0",  # and is there
    ):
        await _refused(world, REVISION.format(values))
    for good in ("3, 1, 2, 1, 1", "4, 1, 2, 999, 1"):
        await _accepted(world, REVISION.format(good))
    for column in ("number", "canary_number", "canary_permille", "deleted", "origin", "created_by"):
        await _refused(world, f"UPDATE alias_revision SET {column} = {column} WHERE revision = 3")


async def test_one_rollout_of_an_alias_runs(world: World) -> None:
    await make_version(world)
    await make_version(world)
    ended = "'2026-01-01 00:00:00+00'"
    await _accepted(world, ROLLOUT.format("a", "RUNNING", "NULL"))
    for name, state, end in (("b", "RUNNING", ended), ("b", "PROMOTED", "NULL"), ("b", "NONSENSE", ended)):
        await _refused(world, ROLLOUT.format(name, state, end))
    with pytest.raises(StaleEtag) as caught:
        await _accepted(world, ROLLOUT.format("b", "RUNNING", "NULL"))
    assert "uq_rollout_running" in str(caught.value.__cause__) or "UNIQUE" in str(caught.value.__cause__)
    for name, state in (("c", "PROMOTED"), ("d", "ROLLED_BACK"), ("e", "REPLACED")):
        await _accepted(world, ROLLOUT.format(name, state, ended))


async def test_modes_of_pins(world: World) -> None:
    await make_version(world)
    pin = (
        "INSERT INTO pin (tenant_id, adapter_id, number, mode, created_at, created_by)"
        " SELECT tenant_id, id, {0}, '{1}', '2026-01-01 00:00:00+00', 'k' FROM adapter"
    )
    for number, mode in ((1, "SOFT"), (1, ""), (1, "hard"), (2, "HARD")):
        await _refused(world, pin.format(number, mode))
    await _accepted(world, pin.format(1, "DEFAULT"))
    await _refused(world, "UPDATE pin SET mode = 'x'")


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


async def test_usage_of_older_releases_is_in_the_sums_after_a_migration(world: World, url: str) -> None:
    """The schema moves back to before the sums, and forth: what was in the ledger is added up, once."""
    await world.registry.usage.write([usage(world.admin.tenant, number) for number in (1, 2, 70)])
    await world.registry.database.close()
    await asyncio.to_thread(command.downgrade, alembic_config(url), "0002")
    await migrate(url)
    await check_sums(world.registry)
    assert len(await kept(world.registry)) == 3
    assert not await asyncio.to_thread(migrate_sync, url), "there is nothing left to do"


async def test_counts_without_a_bill_move_back_and_forth(world: World, url: str) -> None:
    """The schema of before has none; gateways go on counting where it comes back."""
    counts = {Outcome(world.admin.tenant, NOON, "", "OVERLOADED"): 3}
    await world.registry.outcomes.write("gw", counts)
    await _refused(world, "UPDATE outcome_rollup SET requests = 0")
    await _refused(world, "UPDATE outcome_rollup SET tenant_id = 'nobody'")
    await world.registry.database.close()
    await asyncio.to_thread(command.downgrade, alembic_config(url), "0005")
    with pytest.raises((DBAPIError, Unavailable)):
        await world.registry.outcomes.write("gw", counts)
    await world.registry.database.close()
    await migrate(url)
    await asyncio.to_thread(command.check, alembic_config(url))
    await world.registry.outcomes.write("gw", counts)
    async with world.registry.database.read() as session:
        assert (await session.execute(text("SELECT sum(requests) FROM outcome_rollup"))).scalar_one() == 3


LOGIN = (
    "INSERT INTO login (id, principal_id, password_hash, disabled, revision, changed_at, created_at, created_by)"
    " SELECT '{0}', id, '{1}', false, 1, '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', 'k' FROM principal"
)
WEB_SESSION = (
    "INSERT INTO web_session (id, login_id, mac, pepper_id, agent, address, created_at, seen_at, expires_at)"
    " SELECT '{0}', id, '{1}', 'p', '', '', '2026-01-02 00:00:00+00', '2026-01-02 00:00:00+00', '{2}' FROM login"
)


async def test_what_logins_and_sessions_can_be(world: World) -> None:
    for word in ("hunter2", "", "$argon2i$v=19$x", "$2b$12$x"):
        await _refused(world, LOGIN.format("lg_1", word))
    await _accepted(world, LOGIN.format("lg_1", "$argon2id$v=19$x"))
    with pytest.raises(StaleEtag):
        await _accepted(world, LOGIN.format("lg_2", "$argon2id$v=19$x"))  # one of each principal
    for mac, expires in (("a" * 63, "2026-02-01 00:00:00+00"), ("a" * 64, "2026-01-02 00:00:00+00")):
        await _refused(world, WEB_SESSION.format("ws_1", mac, expires))
    await _accepted(world, WEB_SESSION.format("ws_1", "a" * 64, "2026-02-01 00:00:00+00"))
    await _refused(
        world, "INSERT INTO login_throttle (subject, failures, forget_at) VALUES ('x', -1, '2026-01-01 00:00:00+00')"
    )
    await _refused(world, "UPDATE principal SET role = 'king'")


async def test_roles_of_this_release_move_back_and_forth(world: World, url: str) -> None:
    """A viewer's keys are dead in the release before, which would let them generate; an operator's are a member's."""
    registry, admin = world.registry, world.admin
    await registry.tenants.create(admin, "anna")
    keys = {role: (await registry.keys.create(admin, "anna", role, role))[1] for role in Role if role != admin.role}
    await registry.accounts.create(admin, "anna", "viewer", "viewer", "correct horse battery")
    await registry.database.close()
    await asyncio.to_thread(command.downgrade, alembic_config(url), "0003")
    async with registry.database.read() as session:
        found = (await session.execute(text("SELECT name, role FROM principal WHERE name <> 'admin'"))).all()
    assert {tuple(row) for row in found} == {
        ("owner", "owner"), ("operator", "member"), ("member", "member"), ("viewer", "member"),
    }  # fmt: skip
    await registry.database.close()
    await migrate(url)
    again = Registry(url, PEPPERS)
    snapshot = await again.snapshots().start()
    for role, key in keys.items():
        if role == "viewer":
            with pytest.raises(Unauthenticated):
                snapshot.authenticate(key, 0)
        else:
            assert snapshot.authenticate(key, 0).role == ("member" if role == "operator" else role)
    assert not (await again.accounts.list(admin, "anna", PageRequest.of(0, ""))).rows
    await again.close()

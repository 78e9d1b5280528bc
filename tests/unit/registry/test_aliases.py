"""Aliases: what a change means, what may be a target, who wins a race."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
from alembic import command
from sqlalchemy import text

from lorry import errors
from lorry.registry import PageRequest, Registry, VersionState, alembic_config, migrate
from lorry.registry.aliases.service import alias_etag
from lorry.registry.db.tables import AliasRevision
from lorry.registry.names import AdapterName
from tests.unit.registry.conftest import PEPPERS, World
from tests.unit.registry.test_migrations import make_version

LIVE = AdapterName("platform", "a", alias="live")
ALL = PageRequest.of(0, "")
AT_ONCE = 50


async def versions(world: World, number: int) -> list[str]:
    return [await make_version(world) for _ in range(number)]


async def execute(world: World, statement: str, **values: Any) -> None:
    async with world.registry.database.write() as session:
        await session.execute(text(statement), values)


async def select(world: World, statement: str) -> list[Any]:
    async with world.registry.database.read() as session:
        return list((await session.execute(text(statement))).all())


async def rollouts(world: World) -> list[str]:
    return [row[0] for row in await select(world, "SELECT state FROM rollout WHERE name = 'live' ORDER BY id")]


def shown(row: AliasRevision) -> tuple[int, int, int, int]:
    return row.revision, row.number, row.canary_number or 0, row.canary_permille


async def test_a_canary_from_its_start_to_its_promotion_and_back(world: World) -> None:
    await versions(world, 3)
    aliases, admin = world.registry.aliases, world.admin
    made = await aliases.set(admin, LIVE, 1, "new")
    assert shown(made) == (1, 1, 0, 0)
    with pytest.raises(errors.AlreadyExists):
        await aliases.set(admin, LIVE, 2, "new")
    assert shown(await aliases.set_canary(admin, LIVE, 2, 50, alias_etag(made))) == (2, 1, 2, 50)
    assert shown(await aliases.set_canary(admin, LIVE, 2, 500)) == (3, 1, 2, 500)
    assert shown(await aliases.set_canary(admin, LIVE, 2, 500)) == (3, 1, 2, 500)  # as it is
    assert await rollouts(world) == ["RUNNING"]
    assert shown(await aliases.set_canary(admin, LIVE, 3, 999)) == (4, 1, 3, 999)
    assert await rollouts(world) == ["REPLACED", "RUNNING"]
    assert shown(await aliases.roll_back(admin, LIVE)) == (5, 1, 0, 0)
    await aliases.set_canary(admin, LIVE, 2, 1)
    assert shown(await aliases.promote(admin, LIVE)) == (7, 2, 0, 0)
    assert await rollouts(world) == ["REPLACED", "ROLLED_BACK", "PROMOTED"]
    assert shown(await aliases.roll_back(admin, LIVE)) == (8, 1, 0, 0)
    past = (await aliases.revisions(admin, LIVE, ALL)).rows
    assert [shown(row)[:3] for row in past] == [
        (8, 1, 0), (7, 2, 0), (6, 1, 2), (5, 1, 0), (4, 1, 3), (3, 1, 2), (2, 1, 2), (1, 1, 0),
    ]  # fmt: skip
    assert len({alias_etag(row) for row in past}) == 8


async def test_rollouts_that_ended_before_their_part_was_kept(world: World, url: str) -> None:
    """The same canary twice, by other parts; one that runs. As the release before left them."""
    await versions(world, 3)
    aliases, admin = world.registry.aliases, world.admin
    await aliases.set(admin, LIVE, 1)
    for permille in (50, 500):
        await aliases.set_canary(admin, LIVE, 2, permille)
    await aliases.roll_back(admin, LIVE)
    await aliases.set_canary(admin, LIVE, 2, 999)
    await aliases.set_canary(admin, LIVE, 3, 7)
    before = [(seen.row.state, seen.permille) for seen in (await aliases.rollouts(admin, LIVE, ALL)).rows]
    assert before == [("RUNNING", 7), ("REPLACED", 999), ("ROLLED_BACK", 500)]
    await world.registry.database.close()
    await asyncio.to_thread(command.downgrade, alembic_config(url), "0005")
    await migrate(url)
    registry = Registry(url, PEPPERS)
    rows = (await registry.aliases.rollouts(admin, LIVE, ALL)).rows
    assert [(seen.row.state, seen.permille) for seen in rows] == before
    await registry.close()


async def test_rolling_back_goes_further_back_and_never_forth(world: World) -> None:
    await versions(world, 3)
    aliases, admin = world.registry.aliases, world.admin
    for number in (1, 2, 3):
        await aliases.set(admin, LIVE, number)
    assert (await aliases.roll_back(admin, LIVE)).number == 2
    await aliases.set_canary(admin, LIVE, 3, 10)  # is no change of what it points at
    await aliases.roll_back(admin, LIVE)
    assert (await aliases.roll_back(admin, LIVE)).number == 1
    with pytest.raises(errors.FailedPrecondition, match="nothing before"):
        await aliases.roll_back(admin, LIVE)
    await aliases.set(admin, LIVE, 3)
    assert (await aliases.roll_back(admin, LIVE)).number == 1
    with pytest.raises(errors.FailedPrecondition):
        await aliases.roll_back(admin, LIVE)


async def test_a_deleted_alias_counts_on_and_has_no_past(world: World) -> None:
    await versions(world, 2)
    aliases, admin = world.registry.aliases, world.admin
    await aliases.set(admin, LIVE, 1)
    await aliases.set_canary(admin, LIVE, 2, 10)
    gone = await aliases.delete(admin, LIVE)
    assert (gone.deleted, shown(gone)) == (True, (3, 1, 0, 0))
    assert await rollouts(world) == ["REPLACED"]
    assert [row.name for row in (await aliases.list(admin, LIVE, ALL)).rows] == ["prod"]
    steps: Sequence[Awaitable[AliasRevision]] = (
        aliases.get(admin, LIVE),
        aliases.delete(admin, LIVE),
        aliases.promote(admin, LIVE),
        aliases.roll_back(admin, LIVE),
        aliases.set_canary(admin, LIVE, 2, 1),
    )
    for step in steps:
        with pytest.raises(errors.ResourceNotFound):
            await step
    with pytest.raises(errors.StaleEtag):
        await aliases.set(admin, LIVE, 2, alias_etag(gone))
    assert [row.deleted for row in (await aliases.revisions(admin, LIVE, ALL)).rows] == [True, False, False]
    assert shown(await aliases.set(admin, LIVE, 2, "new")) == (4, 2, 0, 0)
    with pytest.raises(errors.FailedPrecondition):
        await aliases.roll_back(admin, LIVE)
    with pytest.raises(errors.ResourceNotFound):
        await aliases.revisions(admin, AdapterName("platform", "a", alias="never"), ALL)


async def test_what_may_be_a_target(world: World) -> None:
    ids = await versions(world, 4)
    await make_version(world, VersionState.REJECTED)
    aliases, admin = world.registry.aliases, world.admin
    await execute(world, "UPDATE adapter_version SET deprecated_at = '2026-11-01 00:00:00+00' WHERE id = :i", i=ids[1])
    await execute(world, "UPDATE adapter_version SET state = 'QUARANTINED' WHERE id = :i", i=ids[2])
    await execute(
        world,
        "UPDATE adapter_version SET state = 'QUARANTINED', purged_at = '2026-11-01 00:00:00+00' WHERE id = :i",
        i=ids[3],
    )
    await aliases.set(admin, LIVE, 1)
    assert (await aliases.set_canary(admin, LIVE, 2, 5)).canary_number == 2
    assert (await aliases.set(admin, LIVE, 2)).number == 2
    for number, error in (
        (3, errors.AdapterQuarantined),
        (4, errors.VersionNotReady),
        (5, errors.VersionNotReady),
        (6, errors.ResourceNotFound),
        (0, errors.ResourceNotFound),
        (1 << 63, errors.ResourceNotFound),
    ):
        with pytest.raises(error):
            await aliases.set(admin, LIVE, number)
        with pytest.raises(error):
            await aliases.set_canary(admin, LIVE, number, 5)
    with pytest.raises(errors.FailedPrecondition, match="points at"):
        await aliases.set_canary(admin, LIVE, 2, 5)
    for permille in (0, 1000, -1, 1 << 31):
        with pytest.raises(errors.InvalidRequest) as caught:
            await aliases.set_canary(admin, LIVE, 1, permille)
        assert caught.value.violations[0].field == "permille"
    assert (await aliases.get(admin, LIVE)).revision == 3


async def test_what_was_quarantined_meanwhile_is_not_gone_back_to(world: World) -> None:
    ids = await versions(world, 2)
    aliases, admin = world.registry.aliases, world.admin
    await aliases.set(admin, LIVE, 1)
    await aliases.set_canary(admin, LIVE, 2, 10)
    await execute(world, "UPDATE adapter_version SET state = 'QUARANTINED' WHERE id = :i", i=ids[1])
    with pytest.raises(errors.AdapterQuarantined):
        await aliases.promote(admin, LIVE)
    await aliases.roll_back(admin, LIVE)  # which ends the canary all the same
    three = await make_version(world)
    assert three
    await aliases.set(admin, LIVE, 3)
    await execute(world, "UPDATE adapter_version SET state = 'QUARANTINED' WHERE id = :i", i=ids[0])
    with pytest.raises(errors.AdapterQuarantined):
        await aliases.roll_back(admin, LIVE)
    assert (await aliases.get(admin, LIVE)).number == 3


async def test_a_deleted_adapters_aliases_stay_as_they_are(world: World) -> None:
    await versions(world, 2)
    aliases, admin = world.registry.aliases, world.admin
    await aliases.set(admin, LIVE, 1)
    await execute(world, "UPDATE adapter SET deleted_at = '2026-11-01 00:00:00+00'")
    for step in (aliases.set(admin, LIVE, 2), aliases.set_canary(admin, LIVE, 2, 5), aliases.delete(admin, LIVE)):
        with pytest.raises(errors.FailedPrecondition, match="deleted"):
            await step


async def test_whose_aliases(world: World) -> None:
    await versions(world, 2)
    await world.registry.tenants.create(world.admin, "anna")
    anna, member = await world.caller("anna"), await world.caller("anna", "member")
    aliases = world.registry.aliases
    await aliases.set(world.admin, LIVE, 1)
    await aliases.set_canary(world.admin, LIVE, 2, 5)
    for caller, error in ((anna, errors.ResourceNotFound), (member, errors.RoleTooLow)):
        for step in (
            aliases.get(caller, LIVE),
            aliases.list(caller, LIVE, ALL),
            aliases.revisions(caller, LIVE, ALL),
            aliases.set(caller, LIVE, 2),
            aliases.set_canary(caller, LIVE, 2, 6),
            aliases.promote(caller, LIVE),
            aliases.roll_back(caller, LIVE),
            aliases.delete(caller, LIVE),
        ):
            with pytest.raises(error):
                await step
    assert (await aliases.get(world.admin, LIVE)).revision == 2


async def test_changes_are_audited_and_logged_and_no_change_is_not(world: World) -> None:
    await versions(world, 2)
    aliases, admin = world.registry.aliases, world.admin
    before = (await world.source.refresh()).epoch
    await aliases.set(admin, LIVE, 1)
    await aliases.set(admin, LIVE, 1)
    await aliases.set_canary(admin, LIVE, 2, 5)
    await aliases.set_canary(admin, LIVE, 2, 5)
    await aliases.promote(admin, LIVE)
    await aliases.roll_back(admin, LIVE)
    await aliases.delete(admin, LIVE)
    assert (await world.source.refresh()).epoch == before + 5
    rows = await select(world, "SELECT action, subject FROM audit_event WHERE action LIKE 'alias.%' ORDER BY id")
    assert [row[0] for row in rows] == ["alias.set", "alias.canary", "alias.promote", "alias.rollback", "alias.delete"]
    assert {row[1] for row in rows} == {"tenants/platform/adapters/a@live"}


async def test_the_longest_name_fits(world: World) -> None:
    name = "x" * 63
    await world.registry.tenants.create(world.admin, name)
    await world.registry.adapters.create(world.admin, name, name)
    longest = AdapterName(name, name, alias=name)
    with pytest.raises(errors.ResourceNotFound):
        await world.registry.aliases.set(world.admin, longest, 1)
    await versions(world, 1)
    await execute(world, "UPDATE adapter SET name = :n WHERE name = 'a'", n=name)
    await execute(world, "UPDATE tenant SET name = :n WHERE name = 'platform'", n="y" * 63)
    longest = AdapterName("y" * 63, name, alias=name)
    await world.registry.aliases.set(world.admin, longest, 1)
    (row,) = await select(world, "SELECT subject FROM audit_event WHERE action = 'alias.set'")
    assert row[0] == str(longest)


async def test_pages(world: World) -> None:
    await versions(world, 2)
    aliases, admin = world.registry.aliases, world.admin
    for alias in ("b.c", "a", "c"):
        await aliases.set(admin, AdapterName("platform", "a", alias=alias), 1)
    page = await aliases.list(admin, LIVE, PageRequest.of(2, ""))
    rest = await aliases.list(admin, LIVE, PageRequest.of(2, page.next_token))
    assert [row.name for row in (*page.rows, *rest.rows)] == ["a", "b.c", "c", "prod"]
    assert rest.next_token == ""
    name = AdapterName("platform", "a", alias="c")
    for number in (2, 1, 2):
        await aliases.set(admin, name, number)
    page_2 = await aliases.revisions(admin, name, PageRequest.of(3, ""))
    rest_2 = await aliases.revisions(admin, name, PageRequest.of(3, page_2.next_token))
    assert [row.revision for row in (*page_2.rows, *rest_2.rows)] == [4, 3, 2, 1]


async def at_once(steps: Sequence[Awaitable[AliasRevision]]) -> tuple[list[AliasRevision], list[BaseException]]:
    found = await asyncio.gather(*steps, return_exceptions=True)
    done = [each for each in found if not isinstance(each, BaseException)]
    return done, [each for each in found if isinstance(each, BaseException)]


async def test_one_of_many_promotes_at_once_wins(world: World) -> None:
    """By etag the others are told that it changed; without one they find no canary."""
    await versions(world, 2)
    aliases, admin = world.registry.aliases, world.admin
    await aliases.set(admin, LIVE, 1)
    for round_, error in enumerate((errors.StaleEtag, errors.FailedPrecondition)):
        await aliases.set(admin, LIVE, 1)
        etag = alias_etag(await aliases.set_canary(admin, LIVE, 2, 100))
        won, lost = await at_once(
            [aliases.promote(admin, LIVE, etag if error is errors.StaleEtag else "") for _ in range(AT_ONCE)]
        )
        assert [row.number for row in won] == [2]
        assert {type(each) for each in lost} == {error}
        assert await rollouts(world) == ["PROMOTED"] * (round_ + 1)


async def test_one_of_many_first_sets_at_once_wins(world: World) -> None:
    await versions(world, 2)
    aliases, admin = world.registry.aliases, world.admin
    won, lost = await at_once([aliases.set(admin, LIVE, 1 + index % 2, "new") for index in range(AT_ONCE)])
    assert [row.revision for row in won] == [1]
    assert {type(each) for each in lost} == {errors.AlreadyExists}
    done, failed = await at_once([aliases.set(admin, LIVE, 1 + index % 2) for index in range(AT_ONCE)])
    assert not failed
    newest = await aliases.get(admin, LIVE)
    assert newest.revision == max(row.revision for row in done)
    numbers = [row.number for row in (await aliases.revisions(admin, LIVE, ALL)).rows]
    assert all(one != other for one, other in itertools.pairwise(numbers))


async def test_rollbacks_and_canaries_at_once_by_etag(world: World) -> None:
    await versions(world, 3)
    aliases, admin = world.registry.aliases, world.admin
    for number in (1, 2):
        await aliases.set(admin, LIVE, number)
    etag = alias_etag(await aliases.get(admin, LIVE))
    won, lost = await at_once(
        [
            aliases.roll_back(admin, LIVE, etag) if index % 2 else aliases.set_canary(admin, LIVE, 3, 10, etag)
            for index in range(AT_ONCE)
        ]
    )
    assert [row.revision for row in won] == [3]
    assert {type(each) for each in lost} == {errors.StaleEtag}

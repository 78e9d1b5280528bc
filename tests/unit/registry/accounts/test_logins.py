"""Logins: what is kept and told of them, and what guesses bring; on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text as sql

from lorry import errors
from lorry.registry import Accounts
from tests.unit.registry.accounts.conftest import ALL, WHERE, WORD, Here
from tests.unit.registry.conftest import CHEAP, NOW, PEPPERS


async def test_nothing_secret_is_kept_or_told(here: Here) -> None:
    text, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    kept = []
    async with here.world.registry.database.read() as work:
        for table in ("login", "web_session", "login_throttle", "audit_event", "change_log"):
            kept.append(str((await work.execute(sql(f"SELECT * FROM {table}"))).all()))
    for secret in (WORD, text, text[-64:], session.csrf, token):
        assert secret not in "".join(kept)
        assert secret not in repr(session) + repr(here.anna)
    assert "anna@acme" not in kept[2]


async def test_refusals_say_the_same_whoever_it_is(here: Here) -> None:
    await here.accounts.create(here.world.admin, "acme", "gone", "viewer", WORD)
    await here.accounts.disable(here.world.admin, "acme", "gone")
    await here.world.registry.tenants.create(here.world.admin, "bert")
    await here.accounts.create(here.world.admin, "bert", "bea", "viewer", WORD)
    await here.world.registry.tenants.update(here.world.admin, "bert", ["suspended"], suspended=True)
    said = {
        (type(error), error.message)
        for error in [
            await here.refused(),
            await here.refused("nobody@acme", WORD),
            await here.refused("anna@nowhere", WORD),
            await here.refused("anna", WORD),
            await here.refused("@", WORD),
            await here.refused("x" * 10_000 + "@acme", WORD),
            await here.refused("gone@acme", WORD),
            await here.refused("bea@bert", WORD),
            await here.refused("anna@acme", ""),
            await here.refused("anna@acme", "x" * 10_000),
        ]
    }
    assert len(said) == 1
    assert said.pop()[0] is errors.Unauthenticated
    assert (await here.log_in(" Anna@ACME "))[1].login == (await here.log_in())[1].login


async def test_guesses_lock_users_that_are_there_and_that_are_not_alike(here: Here) -> None:
    for name, address in (("anna@acme", "10.0.0.2"), ("nobody@acme", "10.0.0.3")):
        for _ in range(5):
            assert type(await here.refused(name, address=address)) is errors.Unauthenticated
        locked = await here.refused(name, WORD, address="10.0.0.9")
        assert (type(locked), locked.retry_after_s) == (errors.TooManyLogins, 60.0)
    with pytest.raises(errors.TooManyLogins):
        await here.other.log_in("anna@acme", WORD, **WHERE, now=NOW + 59)
    assert (await here.accounts.get(here.world.admin, "acme", "anna")).locked_until == NOW + 60
    here.clock.now += 60
    _, session = await here.log_in()
    assert session.login.locked_until is None
    (row,) = await here.said("user.login")
    assert row[2] == {"address": "10.0.0.1", "failed_before": 5}
    for _ in range(4):
        await here.refused()
    assert (await here.log_in())[1], "failures are counted anew after a login"


async def test_guesses_from_one_address_lock_it_for_all_users(here: Here) -> None:
    for number in range(30):
        assert type(await here.refused(f"u{number}@acme", address="10.0.0.2")) is errors.Unauthenticated
    assert type(await here.refused("anna@acme", WORD, address="10.0.0.2")) is errors.TooManyLogins
    assert (await here.log_in(address="10.0.0.3"))[1]
    here.clock.now += 60
    assert (await here.log_in(address="10.0.0.2"))[1]


async def test_guesses_at_once_in_two_processes_are_all_counted(here: Here) -> None:
    async def guess(accounts: Accounts) -> type[BaseException] | None:
        try:
            await accounts.log_in("anna@acme", "another one altogether", **WHERE, now=NOW)
        except errors.LorryError as error:
            return type(error)
        return None

    found = await asyncio.gather(*(guess(each) for _ in range(15) for each in (here.accounts, here.other)))
    assert found.count(errors.Unauthenticated) == 5
    assert found.count(errors.TooManyLogins) == 25


async def test_old_counts_are_forgotten(here: Here) -> None:
    await here.refused("nobody@acme")
    here.clock.now += 2 * 3600
    await here.log_in()
    async with here.world.registry.database.read() as work:
        assert (await work.execute(sql("SELECT count(*) FROM login_throttle"))).scalar_one() == 2


async def test_an_owner_ends_a_lock(here: Here) -> None:
    for change in (
        lambda: here.accounts.enable(here.world.admin, "acme", "anna"),
        lambda: here.accounts.set_password(here.world.admin, "acme", "anna", WORD),
    ):
        for _ in range(5):
            await here.refused(address="10.0.0.2")
        assert type(await here.refused(password=WORD)) is errors.TooManyLogins
        await change()
        assert (await here.log_in())[1]


async def test_a_login_rehashes_when_the_parameters_changed(here: Here) -> None:
    async def kept() -> str:
        async with here.world.registry.database.read() as work:
            found: str = (await work.execute(sql("SELECT password_hash FROM login"))).scalar_one()
            return found

    dearer = Accounts(here.world.registry.database, PEPPERS, replace(CHEAP, passes=2), here.clock)
    assert "t=1," in await kept()
    found = await asyncio.gather(*(dearer.log_in("anna@acme", WORD, **WHERE, now=NOW) for _ in range(4)))
    assert len(found) == 4
    assert "t=2," in await kept()
    assert found[0][1].login.etag == here.anna.etag
    assert (await here.log_in())[1]
    assert "t=1," in await kept()


async def test_a_login_that_races_a_change_does_not_slip_through(here: Here) -> None:
    """The password is right when it is looked at, and the user is disabled before the session begins."""
    begin, accounts = here.accounts._begin, here.accounts

    async def late(*args: Any) -> Any:
        await here.other.disable(here.world.admin, "acme", "anna")
        return await begin(*args)

    accounts._begin = late  # type: ignore[assignment, method-assign]  # between the transactions
    assert type(await here.refused(password=WORD)) is errors.Unauthenticated
    assert not (await here.accounts.sessions(here.world.admin, "acme", ALL)).rows

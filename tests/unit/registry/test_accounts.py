"""Logins, sessions and users, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import text as sql

from lorry import errors
from lorry.registry import Accounts, Caller, Login, PageRequest, Registry, Role, SnapshotSource, WebSession
from lorry.registry.accounts.service import SESSIONS_MAX
from lorry.registry.accounts.users import IDLE, LIFE
from lorry.registry.usertokens import REMEMBER_S, TOKEN_S
from tests.unit.registry.conftest import CHEAP, NOW, PEPPERS, World

ALL = PageRequest.of(0, "")
WORD = "correct horse battery"
WHERE = {"agent": "Firefox", "address": "10.0.0.1"}


@dataclass
class Clock:
    now: float = NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class Here:
    """A tenant ``acme`` whose owner ``anna`` has a login; ``other`` is another process."""

    world: World
    clock: Clock
    accounts: Accounts
    other: Accounts
    anna: Login

    @property
    def source(self) -> SnapshotSource:
        return self.world.source

    async def log_in(self, name: str = "anna@acme", password: str = WORD, **where: str) -> tuple[str, WebSession]:
        return await self.accounts.log_in(name, password, **(WHERE | where), now=self.clock.now)

    async def refused(self, name: str = "anna@acme", password: str = "another one altogether", **where: str) -> Any:
        with pytest.raises(errors.LorryError) as caught:
            await self.log_in(name, password, **where)
        return caught.value

    async def resume(self, text: str) -> WebSession | None:
        return await self.other.resume(text, self.clock.now)

    async def caller(self, token: str, *, begun: bool = False) -> Caller:
        return (await self.source.refresh()).authenticate(token, self.clock.now, begun=begun)

    async def dead(self, token: str, *, begun: bool = False) -> bool:
        try:
            await self.caller(token, begun=begun)
        except errors.Unauthenticated:
            return True
        return False

    async def said(self, action: str) -> list[tuple[str, str, Any]]:
        events = (await self.world.registry.audit.list(self.world.admin, "acme", ALL)).rows
        return [(row.actor_key_id, row.subject, row.details) for row in events if row.action == action]


@pytest.fixture
async def here(world: World) -> AsyncIterator[Here]:
    clock = Clock()
    accounts = Accounts(world.registry.database, PEPPERS, CHEAP, clock)
    second = Registry(str(world.registry.database.engine.url.render_as_string(False)), PEPPERS, CHEAP, clock)
    await world.registry.tenants.create(world.admin, "acme")
    anna, _ = await accounts.create(world.admin, "acme", "anna", "owner", WORD)
    yield Here(world, clock, accounts, second.accounts, anna)
    await second.close()


async def test_a_session_from_login_to_logout(here: Here) -> None:
    text, session = await here.log_in()
    assert (session.login.username, session.login.role, session.login.last_login) == ("anna@acme", "owner", NOW)
    assert (session.created_at, session.expires_at) == (NOW, NOW + LIFE.total_seconds())
    assert await here.resume(text) == session
    assert await here.resume(text[:-1] + ("0" if text[-1] != "0" else "1")) is None
    assert await here.resume("") is None
    token = here.accounts.token(session, NOW)
    caller = await here.caller(token)
    assert (caller.tenant_name, caller.principal, caller.role) == ("acme", "anna", "owner")
    assert (caller.key_id, caller.admin) == (f"user/{here.anna.id}", False)
    assert len(caller.key_id) <= 48
    await here.accounts.log_out(text)
    await here.accounts.log_out(text)
    await here.accounts.log_out("lorrys_nonsense")
    assert await here.resume(text) is None
    assert await here.dead(token)
    assert await here.dead(token, begun=True)
    whose = (f"user/{here.anna.id}", "tenants/acme/users/anna")
    assert [row[:2] for row in await here.said("user.login")] == [whose]
    assert [row[:2] for row in await here.said("user.logout")] == [whose]


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


async def test_a_session_ends_when_idle_and_when_old(here: Here) -> None:
    idle, life = IDLE.total_seconds(), LIFE.total_seconds()
    text, session = await here.log_in()
    assert session.seen_at == NOW
    here.clock.now += 59
    found = await here.resume(text)
    assert found is not None
    assert found.seen_at == NOW
    here.clock.now = NOW + idle - 1
    assert await here.resume(text) is not None
    assert (await here.resume(text) or session).seen_at == here.clock.now
    while here.clock.now < NOW + life - idle:
        here.clock.now += idle - 1
        assert await here.resume(text) is not None
    here.clock.now = NOW + life - 10
    found = await here.resume(text)
    assert found is not None
    token = here.accounts.token(found, here.clock.now)
    assert (await here.caller(token)).expires_at == NOW + life
    here.clock.now = NOW + life
    assert await here.resume(text) is None
    assert await here.dead(token, begun=True), "neither does a token outlive it"
    text, _ = await here.log_in()
    here.clock.now += idle
    assert await here.resume(text) is None
    assert not (await here.accounts.sessions(here.world.admin, "acme", ALL)).rows


async def test_who_has_too_many_sessions_loses_the_oldest(here: Here) -> None:
    first, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    for _ in range(SESSIONS_MAX - 1):
        here.clock.now += 1
        await here.log_in()
    assert await here.resume(first) is not None
    here.clock.now += 1
    await here.log_in()
    assert await here.resume(first) is None
    assert await here.dead(token)
    assert len((await here.accounts.sessions(here.world.admin, "acme", ALL)).rows) == SESSIONS_MAX


async def test_a_role_holds_at_once_for_sessions_tokens_and_keys(here: Here) -> None:
    owner = here.world.admin
    _, key = await here.world.registry.keys.create(owner, "acme", "anna", "owner")
    text, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    assert (await here.caller(token)).role == (await here.caller(key)).role == "owner"
    changed = await here.accounts.set_role(owner, "acme", "anna", "viewer")
    assert changed.role == "viewer"
    assert (await here.caller(token)).role == (await here.caller(key)).role == "viewer"
    resumed = await here.resume(text)
    assert resumed is not None
    assert resumed.login.role == "viewer"
    fresh = await here.world.registry.snapshots().start()
    assert fresh.authenticate(token, NOW).role == fresh.authenticate(key, NOW).role == "viewer"
    assert [row[2] for row in await here.said("user.update")] == [{"role": "viewer"}]
    epoch = (await here.source.refresh()).epoch
    await here.accounts.set_role(owner, "acme", "anna", "viewer")
    assert (await here.source.refresh()).epoch == epoch


async def test_who_is_disabled_is_out_and_stays_out_of_old_sessions(here: Here) -> None:
    admin = here.world.admin
    text, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    assert not await here.dead(token)
    assert (await here.accounts.disable(admin, "acme", "anna")).disabled
    assert await here.dead(token, begun=True)
    assert await here.resume(text) is None
    assert type(await here.refused(password=WORD)) is errors.Unauthenticated
    await here.accounts.enable(admin, "acme", "anna")
    assert await here.dead(token, begun=True), "its session was ended"
    assert await here.resume(text) is None
    _, session = await here.log_in()
    assert not await here.dead(here.accounts.token(session, NOW))


async def test_a_new_password_logs_out_everywhere(here: Here) -> None:
    text, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    changed, made = await here.accounts.set_password(here.world.admin, "acme", "anna")
    assert made is not None
    assert changed.etag != here.anna.etag
    assert await here.dead(token)
    assert await here.resume(text) is None
    assert type(await here.refused(password=WORD)) is errors.Unauthenticated
    assert (await here.log_in(password=made))[1]


async def test_one_changes_ones_own_password_by_the_current_one(here: Here) -> None:
    new = "another long enough one"
    (kept, mine), (lost, _) = await here.log_in(), await here.log_in()
    with pytest.raises(errors.InvalidRequest, match="password"):
        await here.accounts.change_password(mine, WORD, "short", now=NOW)
    with pytest.raises(errors.Unauthenticated):
        await here.accounts.change_password(mine, "not the current one", new, now=NOW)
    await here.accounts.change_password(mine, WORD, new, now=NOW)
    assert await here.resume(kept) is not None
    assert await here.resume(lost) is None
    assert (await here.log_in(password=new))[1]
    for _ in range(5):
        with pytest.raises(errors.Unauthenticated):
            await here.accounts.change_password(mine, WORD, new, now=NOW)
    with pytest.raises(errors.TooManyLogins):
        await here.accounts.change_password(mine, new, WORD, now=NOW)


async def test_sessions_are_seen_and_ended_by_who_may(here: Here) -> None:
    text, session = await here.log_in(agent="Mozilla\n\x1b[31m" + "x" * 500)
    token = here.accounts.token(session, NOW)
    operator = await here.world.caller("acme", "operator")
    (view,) = (await here.accounts.sessions(operator, "acme", ALL)).rows
    assert (view.id, view.username, view.address) == (session.id, "anna@acme", "10.0.0.1")
    assert view.agent.isprintable()
    assert len(view.agent) == 200
    await here.world.registry.tenants.create(here.world.admin, "bert")
    stranger = await here.world.caller("bert", "owner")
    for call in (
        here.accounts.end_session(stranger, session.id),
        here.accounts.end_session(operator, session.id, "bert"),
        here.accounts.end_session(operator, "ws_" + "0" * 32),
        here.accounts.sessions(stranger, "acme", ALL),
    ):
        with pytest.raises(errors.ResourceNotFound):
            await call
    assert await here.resume(text) is not None
    await here.accounts.end_session(operator, session.id, "acme")
    await here.accounts.end_session(operator, session.id)
    assert await here.resume(text) is None
    assert await here.dead(token, begun=True)
    assert await here.said("session.end") == [
        (operator.key_id, f"tenants/acme/sessions/{session.id}", {"user": "anna"})
    ]


async def test_a_snapshot_remembers_what_a_token_could_still_claim_and_no_more(here: Here) -> None:
    for number in range(3):
        text, _ = await here.log_in()
        await here.accounts.log_out(text)
        assert len((await here.source.refresh()).tables.sessions) == number + 1
    await here.accounts.set_role(here.world.admin, "acme", "anna", "operator")
    here.clock.now += REMEMBER_S + 1
    text, _ = await here.log_in()
    await here.accounts.log_out(text)
    tables = (await here.source.refresh()).tables
    assert (len(tables.sessions), len(tables.logins)) == (1, 1)
    await here.accounts.create(here.world.admin, "acme", "bob", "viewer", WORD)
    await here.accounts.disable(here.world.admin, "acme", "bob")
    tables = (await here.source.refresh()).tables
    assert (len(tables.sessions), len(tables.logins)) == (1, 1)
    assert here.world.source.full_loads == 1


async def test_a_full_load_leaves_out_what_is_over(world: World) -> None:
    """By the database's rows, as of the machine's own clock."""
    clock = Clock(1_000_000_000.0)
    accounts = Accounts(world.registry.database, PEPPERS, CHEAP, clock)
    login, _ = await accounts.create(world.admin, "platform", "root", "platform_admin", WORD)
    text, _ = await accounts.log_in(login.username, WORD, **WHERE, now=clock.now)
    await accounts.log_out(text)
    await accounts.disable(world.admin, "platform", "root")
    tables = (await world.registry.snapshots().start()).tables
    assert (len(tables.sessions), len(tables.logins)) == (0, 0)


async def test_a_suspended_tenants_users_are_out(here: Here) -> None:
    text, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    tenants = here.world.registry.tenants
    await tenants.update(here.world.admin, "acme", ["suspended"], suspended=True)
    with pytest.raises(errors.TenantSuspended):
        await here.caller(token)
    assert await here.resume(text) is None
    await tenants.update(here.world.admin, "acme", ["suspended"], suspended=False)
    assert (await here.caller(token)).principal == "anna"


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


async def test_users_are_made_by_owners_within_their_tenant(here: Here) -> None:
    owner, accounts = await here.world.caller("acme"), here.accounts
    for role in (Role.VIEWER, Role.MEMBER, Role.OPERATOR, Role.OWNER):
        login, made = await accounts.create(owner, "acme", f"my-{role}", role)
        assert (login.role, login.username) == (role, f"my-{role}@acme")
        assert made is not None
        assert (await here.log_in(login.username, made, address=f"10.1.0.{len(role)}"))[1].login.id == login.id
    assert (await accounts.create(owner, "acme", "whole@acme", "viewer", WORD))[0].principal == "whole"
    with pytest.raises(errors.AlreadyExists):
        await accounts.create(owner, "acme", "anna", "owner", WORD)
    await here.world.registry.tenants.create(here.world.admin, "bert")
    await accounts.create(here.world.admin, "bert", "anna", "viewer", WORD)  # a name is taken in its tenant alone
    for tenant, name, given, wanted in (
        ("bert", "x", "viewer", errors.ResourceNotFound),
        ("nowhere", "x", "viewer", errors.ResourceNotFound),
        ("platform", "x", "platform_admin", errors.RoleTooLow),
        ("acme", "x", "platform_admin", errors.RoleTooLow),
        ("acme", "x", "king", errors.InvalidRequest),
        ("acme", "x@bert", "viewer", errors.InvalidRequest),
        ("acme", "Anna", "viewer", errors.InvalidRequest),
        ("acme", "my-viewer", "owner", errors.InvalidRequest),
    ):
        with pytest.raises(errors.LorryError) as caught:
            await accounts.create(owner, tenant, name, given, WORD)
        assert type(caught.value) is wanted, (tenant, name, given)
    names = [login.principal for login in (await accounts.list(owner, "acme", ALL)).rows]
    assert names == ["anna", "my-member", "my-operator", "my-owner", "my-viewer", "whole"]
    page = await accounts.list(owner, "acme", PageRequest.of(4, ""))
    rest = await accounts.list(owner, "acme", PageRequest.of(4, page.next_token))
    assert [login.principal for login in (*page.rows, *rest.rows)] == names
    assert rest.next_token == ""
    for call in (accounts.set_role, accounts.disable, accounts.enable, accounts.set_password, accounts.get):
        more = ["viewer"] if call == accounts.set_role else []
        for tenant, name in (("bert", "anna"), ("acme", "nobody"), ("nowhere", "anna")):
            with pytest.raises(errors.ResourceNotFound):
                await call(owner, tenant, name, *more)


async def test_a_user_is_changed_by_one_of_many_with_its_etag_and_not_by_itself(here: Here) -> None:
    accounts, admin = here.accounts, here.world.admin
    found = await asyncio.gather(
        *(
            accounts.update(admin, "acme", "anna", ["role"], role=role, etag=here.anna.etag)
            for role in ("viewer", "operator", "member") * 3
        ),
        return_exceptions=True,
    )
    lost = [type(each) for each in found if isinstance(each, BaseException)]
    assert lost == [errors.StaleEtag] * 8
    await accounts.set_role(admin, "acme", "anna", "owner")
    _, session = await here.log_in()
    self = await here.caller(accounts.token(session, NOW))
    for step in (accounts.disable(self, "acme", "anna"), accounts.set_role(self, "acme", "anna", "viewer")):
        with pytest.raises(errors.FailedPrecondition, match="your own"):
            await step
    for fields in ([], ["password"], ["role", "x"]):
        with pytest.raises(errors.InvalidRequest, match="update_mask"):
            await accounts.update(admin, "acme", "anna", fields, role="viewer")


async def test_a_login_that_races_a_change_does_not_slip_through(here: Here) -> None:
    """The password is right when it is looked at, and the user is disabled before the session begins."""
    begin, accounts = here.accounts._begin, here.accounts

    async def late(*args: Any) -> Any:
        await here.other.disable(here.world.admin, "acme", "anna")
        return await begin(*args)

    accounts._begin = late  # type: ignore[assignment, method-assign]  # between the transactions
    assert type(await here.refused(password=WORD)) is errors.Unauthenticated
    assert not (await here.accounts.sessions(here.world.admin, "acme", ALL)).rows


async def test_tokens_live_for_a_minute(here: Here) -> None:
    _, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    here.clock.now += TOKEN_S - 1
    assert not await here.dead(token)
    here.clock.now += 1
    assert await here.dead(token)
    assert not await here.dead(token, begun=True)

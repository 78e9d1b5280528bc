"""Sessions and the tokens made of them: how long they live, who ends them, what a snapshot remembers."""

from __future__ import annotations

import pytest

from lorry import errors
from lorry.registry import Accounts
from lorry.registry.accounts.service import SESSIONS_MAX
from lorry.registry.accounts.users import IDLE, LIFE
from lorry.registry.usertokens import REMEMBER_S, TOKEN_S
from tests.unit.registry.accounts.conftest import ALL, WHERE, WORD, Clock, Here
from tests.unit.registry.conftest import CHEAP, NOW, PEPPERS, World


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


async def test_tokens_live_for_a_minute(here: Here) -> None:
    _, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    here.clock.now += TOKEN_S - 1
    assert not await here.dead(token)
    here.clock.now += 1
    assert await here.dead(token)
    assert not await here.dead(token, begun=True)

"""Any history of logins, guesses, sessions and changes is what a small model says: two processes, both databases."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from lorry import errors
from lorry.registry import Caller, PageRequest, Registry, Snapshot, SnapshotSource
from lorry.registry.accounts.service import SESSIONS_MAX
from lorry.registry.accounts.users import IDLE, LIFE
from lorry.registry.authz import VerifiedTenantId
from lorry.registry.bootstrap import _first_admin
from tests.unit.registry.conftest import CHEAP, NOW, PEPPERS

T = TypeVar("T")
NAMES = ("ann", "bob", "nobody")
WORDS = ("correct horse battery", "a second good password", "never anybody's word")
ROLES = ("viewer", "member", "operator", "owner")
COUNTER = itertools.count()
USERS, SECRETS, PROCESSES = st.sampled_from(NAMES), st.sampled_from(WORDS), st.sampled_from((0, 1))


@dataclass
class User:
    password: str
    role: str = "viewer"
    disabled: bool = False


@dataclass
class Open:
    """A session; ``token`` was made at ``minted``; ``dead``: by whatever but the clock."""

    name: str
    text: str
    token: str
    began: float
    seen: float
    minted: float
    dead: bool = False


@dataclass
class Guesses:
    failures: int = 0
    locked_until: float = 0.0
    last: float = -1e9


@dataclass
class Model:
    users: dict[str, User] = field(default_factory=dict)
    guesses: dict[str, Guesses] = field(default_factory=lambda: {name: Guesses() for name in NAMES})
    sessions: list[Open] = field(default_factory=list)
    suspended: bool = False

    def end_all(self, name: str) -> None:
        for one in self.sessions:
            one.dead |= one.name == name

    def lives(self, one: Open, now: float) -> bool:
        idle, old = now - one.seen >= IDLE.total_seconds(), now - one.began >= LIFE.total_seconds()
        return not (one.dead or idle or old or self.suspended)


class History(RuleBasedStateMachine):
    """``url`` is set by the test. Each guess comes from an address of its own, so that usernames alone are locked."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.tenant = f"t{next(COUNTER)}"
        self.now = NOW + next(COUNTER) * 1e6
        self.model = Model()
        self.processes: list[Registry] = []
        self.source: SnapshotSource
        self.admin: Caller
        self.wait(self.begin())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def begin(self) -> None:
        self.processes = [Registry(self.url, PEPPERS, CHEAP, lambda: self.now) for _ in range(2)]
        await _first_admin(self.processes[0].database, PEPPERS)
        self.source = self.processes[0].snapshots()
        snapshot = await self.source.start()
        (key,) = [key for key in snapshot.tables.keys.values() if key.role == "platform_admin"]
        self.admin = Caller(VerifiedTenantId(key.tenant), "platform", key.principal, key.role, key.key_id, True)
        await self.processes[0].tenants.create(self.admin, self.tenant)
        for name in NAMES[:2]:
            await self.processes[0].accounts.create(self.admin, self.tenant, name, "viewer", WORDS[0])
            self.model.users[name] = User(WORDS[0])

    def teardown(self) -> None:
        async def close() -> None:
            for registry in self.processes:
                await registry.close()

        self.wait(close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    @rule(name=USERS, word=SECRETS, process=PROCESSES)
    def log_in(self, name: str, word: str, process: int) -> None:
        accounts, guesses = self.processes[process].accounts, self.model.guesses[name]
        user = self.model.users.get(name)
        work = accounts.log_in(
            f"{name}@{self.tenant}", word, agent="", address=f"{self.tenant}-{next(COUNTER)}", now=self.now
        )
        found: Any
        try:
            found = self.wait(work)
        except errors.LorryError as error:
            found = type(error)
        if guesses.locked_until > self.now:
            assert found is errors.TooManyLogins
            return
        good = user is not None and user.password == word and not user.disabled and not self.model.suspended
        if not good:
            assert found is errors.Unauthenticated
            guesses.failures = 1 if guesses.last <= self.now - 3600 else guesses.failures + 1
            if guesses.failures >= 5:
                guesses.locked_until = self.now + min(60 * 2 ** (guesses.failures - 5), 900)
            guesses.last = max(self.now, guesses.locked_until)
            return
        self.model.guesses[name] = Guesses()
        text, session = found
        assert user is not None
        assert session.login.role == user.role
        token = accounts.token(session, self.now)
        self.model.sessions.append(Open(name, text, token, self.now, self.now, self.now))
        unended = [one for one in self.model.sessions if one.name == name and not one.dead]
        if len(unended) > SESSIONS_MAX:
            unended[0].dead = True
        self.now += 0.5  # so that one session is older than the other

    @rule(name=USERS, count=st.integers(3, 7), process=PROCESSES)
    def guess(self, name: str, count: int, process: int) -> None:
        for _ in range(count):
            self.log_in(name, WORDS[2], process)

    @rule(seconds=st.sampled_from((1.0, 59.0, 61.0, 600.0, 3601.0, 6 * 3600.0, 13 * 3600.0)))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(at=st.integers(0, 50), process=PROCESSES)
    def log_out(self, at: int, process: int) -> None:
        if self.model.sessions:
            one = self.model.sessions[at % len(self.model.sessions)]
            self.wait(self.processes[process].accounts.log_out(one.text))
            one.dead = True

    @rule(at=st.integers(0, 50), process=PROCESSES)
    def use(self, at: int, process: int) -> None:
        if not self.model.sessions:
            return
        one = self.model.sessions[at % len(self.model.sessions)]
        found = self.wait(self.processes[process].accounts.resume(one.text, self.now))
        assert (found is not None) == self.model.lives(one, self.now)
        if found is not None:
            assert found.login.role == self.model.users[one.name].role
            if self.now - one.seen >= 60:
                one.seen = self.now
            one.token, one.minted = self.processes[process].accounts.token(found, self.now), self.now

    @rule(at=st.integers(0, 50))
    def end_session(self, at: int) -> None:
        if self.model.sessions:
            one = self.model.sessions[at % len(self.model.sessions)]
            session_id = "ws_" + one.text.split("_")[1]
            self.wait(self.processes[1].accounts.end_session(self.admin, session_id))
            one.dead = True

    @rule(name=st.sampled_from(NAMES[:2]), disabled=st.booleans())
    def switch(self, name: str, disabled: bool) -> None:
        accounts = self.processes[0].accounts
        self.wait((accounts.disable if disabled else accounts.enable)(self.admin, self.tenant, name))
        if self.model.users[name].disabled != disabled:
            self.model.end_all(name)
        self.model.users[name].disabled = disabled
        if not disabled:
            self.model.guesses[name] = Guesses()

    @rule(name=st.sampled_from(NAMES[:2]), role=st.sampled_from(ROLES))
    def set_role(self, name: str, role: str) -> None:
        self.wait(self.processes[0].accounts.set_role(self.admin, self.tenant, name, role))
        self.model.users[name].role = role

    @rule(name=st.sampled_from(NAMES[:2]), word=st.sampled_from(WORDS[:2]))
    def set_password(self, name: str, word: str) -> None:
        self.wait(self.processes[1].accounts.set_password(self.admin, self.tenant, name, word))
        self.model.users[name].password = word
        self.model.guesses[name] = Guesses()
        self.model.end_all(name)

    @rule(suspended=st.booleans())
    def suspend(self, suspended: bool) -> None:
        tenants = self.processes[0].tenants
        self.wait(tenants.update(self.admin, self.tenant, ["suspended"], suspended=suspended))
        self.model.suspended = suspended

    @invariant()
    def tokens_hold_as_their_sessions_do(self) -> None:
        """For a minute, with the rights that its user has now."""
        snapshot = self.wait(self.source.refresh())
        for one in self.model.sessions[-6:]:
            wanted: Any = self.model.users[one.name].role
            if one.dead or not self.now < min(one.minted + 60, one.began + LIFE.total_seconds()):
                wanted = errors.Unauthenticated
            elif self.model.suspended:
                wanted = errors.TenantSuspended
            assert self.role_of(snapshot, one.token) == wanted

    def role_of(self, snapshot: Snapshot, token: str) -> Any:
        try:
            return snapshot.authenticate(token, self.now).role
        except errors.LorryError as error:
            return type(error)

    @invariant()
    def lists_say_what_is(self) -> None:
        page = PageRequest.of(0, "")
        accounts = self.processes[1].accounts
        listed = {login.principal: login for login in self.wait(accounts.list(self.admin, self.tenant, page)).rows}
        assert set(listed) == set(self.model.users)
        for name, login in listed.items():
            user, guesses = self.model.users[name], self.model.guesses[name]
            assert (login.role, login.disabled) == (user.role, user.disabled)
            assert login.locked_until == (guesses.locked_until if guesses.locked_until > self.now else None)
        suspended, self.model.suspended = self.model.suspended, False
        live = sum(self.model.lives(one, self.now) for one in self.model.sessions)
        self.model.suspended = suspended
        assert len(self.wait(accounts.sessions(self.admin, self.tenant, page)).rows) == live


def test_any_history(url: str) -> None:
    class Machine(History):
        pass

    Machine.url = url
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=12 if url.startswith("sqlite") else 6,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Any history of an alias is what a small model says, on both databases, also where two changes race by one etag."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import text

from lorry import errors
from lorry.registry import Caller, PageRequest, Registry, VersionState
from lorry.registry.aliases.service import alias_etag
from lorry.registry.bootstrap import _first_admin
from lorry.registry.db.tables import AliasRevision
from lorry.registry.names import AdapterName
from tests.unit.registry.conftest import NOW, PEPPERS, World
from tests.unit.registry.test_migrations import make_version

READY, REJECTED, ABSENT, VERSIONS = 4, 5, 6, range(1, 7)
NUMBERS = st.sampled_from(VERSIONS)
ETAGS = st.sampled_from(("", "", "current", "current", "stale"))
COUNTER = itertools.count()


class Shown(NamedTuple):
    number: int
    canary: int = 0
    permille: int = 0
    deleted: bool = False


class Model:
    """``targets``: what the alias points at, and what it would go back to, oldest first; empty: it is not there."""

    def __init__(self) -> None:
        self.targets: list[int] = []
        self.canary: tuple[int, int] | None = None
        self.past: list[Shown] = []
        self.rollouts: list[str] = []
        self.quarantined: set[int] = set()

    def end(self, state: str) -> None:
        if self.canary:
            self.rollouts[-1], self.canary = state, None

    def note(self, deleted: bool = False) -> None:
        self.past.append(Shown(self.targets[-1], *(self.canary or (0, 0)), deleted))

    def refused(self, number: int) -> type[errors.LorryError] | None:
        if number == ABSENT:
            return errors.ResourceNotFound
        if number in self.quarantined:
            return errors.AdapterQuarantined
        return errors.VersionNotReady if number == REJECTED else None

    def set(self, number: int) -> type[errors.LorryError] | None:
        if error := self.refused(number):
            return error
        if self.targets[-1:] != [number] or self.canary:
            self.end("REPLACED")
            if self.targets[-1:] != [number]:
                self.targets.append(number)
            self.note()
        return None

    def set_canary(self, number: int, permille: int) -> type[errors.LorryError] | None:
        if error := self.refused(number):
            return error
        if self.targets[-1] == number:
            return errors.FailedPrecondition
        if self.canary != (number, permille):
            if self.canary is None or self.canary[0] != number:
                self.end("REPLACED")
                self.rollouts.append("RUNNING")
            self.canary = (number, permille)
            self.note()
        return None

    def promote(self) -> type[errors.LorryError] | None:
        if self.canary is None:
            return errors.FailedPrecondition
        number = self.canary[0]
        if error := self.refused(number):
            return error
        self.end("PROMOTED")
        self.targets.append(number)
        self.note()
        return None

    def roll_back(self) -> type[errors.LorryError] | None:
        if self.canary is None:
            if len(self.targets) < 2:
                return errors.FailedPrecondition
            if error := self.refused(self.targets[-2]):
                return error
            self.targets.pop()
        self.end("ROLLED_BACK")
        self.note()
        return None

    def delete(self) -> type[errors.LorryError] | None:
        self.end("REPLACED")
        self.note(deleted=True)
        self.targets.clear()
        return None


class AliasMachine(RuleBasedStateMachine):
    """``here`` is set by the test: one registry for all examples, an adapter for each."""

    here: World
    run: Callable[[Awaitable[Any]], Any]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        adapter = f"a{next(COUNTER)}"
        self.name = AdapterName("platform", adapter, alias="live")
        self.ids = [self.do(make_version(self.here, name=adapter)) for _ in range(READY)]
        self.do(make_version(self.here, VersionState.REJECTED, name=adapter))

    @classmethod
    def do(cls, step: Awaitable[Any]) -> Any:
        return cls.run(step)

    def etag(self, kind: str) -> str:
        if kind == "":
            return ""
        past = self.do(self.here.registry.aliases.revisions(self.here.admin, self.name, PageRequest.of(2, ""))).rows
        return alias_etag(past[0 if kind == "current" else -1])

    def change(self, kind: str, step: Callable[[str], Awaitable[AliasRevision]], expected: Callable[[], Any]) -> None:
        """Runs the step, and the model's; ``kind`` is of the etag. Only an alias that was ever there has one."""
        etag = self.etag(kind) if self.model.past else ""
        stale = bool(etag) and (not self.model.targets or (kind == "stale" and len(self.model.past) > 1))
        error = errors.StaleEtag if stale else expected()
        (found,) = self.do(_outcomes(step(etag)))
        assert (None if isinstance(found, AliasRevision) else type(found)) is error, (found, error)
        assert not isinstance(found, AliasRevision) or found.revision == len(self.model.past)

    @rule(number=NUMBERS, kind=ETAGS)
    def set(self, number: int, kind: str) -> None:
        here = self.here
        self.change(
            kind,
            lambda etag: here.registry.aliases.set(here.admin, self.name, number, etag),
            lambda: self.model.set(number),
        )

    @rule(number=NUMBERS, permille=st.sampled_from((1, 500, 999)), kind=ETAGS)
    @precondition(lambda self: self.model.targets)
    def set_canary(self, number: int, permille: int, kind: str) -> None:
        here = self.here
        self.change(
            kind,
            lambda etag: here.registry.aliases.set_canary(here.admin, self.name, number, permille, etag),
            lambda: self.model.set_canary(number, permille),
        )

    @rule(kind=ETAGS)
    @precondition(lambda self: self.model.targets)
    def promote(self, kind: str) -> None:
        here = self.here
        self.change(
            kind, lambda etag: here.registry.aliases.promote(here.admin, self.name, etag), lambda: self.model.promote()
        )

    @rule(kind=ETAGS)
    @precondition(lambda self: self.model.targets)
    def roll_back(self, kind: str) -> None:
        here = self.here
        self.change(
            kind,
            lambda etag: here.registry.aliases.roll_back(here.admin, self.name, etag),
            lambda: self.model.roll_back(),
        )

    @rule(kind=ETAGS, really=st.integers(0, 3))
    @precondition(lambda self: self.model.targets)
    def delete(self, kind: str, really: int) -> None:
        here = self.here
        if really == 0:
            self.change(
                kind,
                lambda etag: here.registry.aliases.delete(here.admin, self.name, etag),
                lambda: self.model.delete(),
            )

    @rule()
    @precondition(lambda self: not self.model.targets)
    def what_is_not_there_cannot_change(self) -> None:
        aliases, admin = self.here.registry.aliases, self.here.admin
        steps = (aliases.promote, aliases.roll_back, aliases.delete, aliases.get)
        found = self.do(_outcomes(*(step(admin, self.name) for step in steps)))
        assert {type(each) for each in found} == {errors.ResourceNotFound}

    @rule(number=st.integers(1, READY), really=st.integers(0, 5))
    def quarantine(self, number: int, really: int) -> None:
        if really == 0:
            self.model.quarantined.add(number)
            self.do(self._quarantine(self.ids[number - 1]))

    async def _quarantine(self, version: str) -> None:
        statement = text("UPDATE adapter_version SET state = 'QUARANTINED' WHERE id = :id")
        async with self.here.registry.database.write() as session:
            await session.execute(statement, {"id": version})

    @rule(one=st.integers(1, READY), other=st.integers(1, READY))
    @precondition(lambda self: self.model.targets)
    def race(self, one: int, other: int) -> None:
        """Two that would each change something, under one etag: one does."""
        now = self.model.targets[-1]
        if {one, other} & ({now} | self.model.quarantined):
            return
        aliases, admin, etag = self.here.registry.aliases, self.here.admin, self.etag("current")
        found = self.do(_outcomes(aliases.set(admin, self.name, one, etag), aliases.set(admin, self.name, other, etag)))
        (won,) = (each for each in found if isinstance(each, AliasRevision))
        (lost,) = (each for each in found if not isinstance(each, AliasRevision))
        assert type(lost) is errors.StaleEtag
        assert won.number in (one, other)
        assert self.model.set(won.number) is None

    @invariant()
    def is_what_the_model_says(self) -> None:
        past, running, states = self.do(self._read())
        assert past == self.model.past
        assert states == self.model.rollouts
        assert running == (1 if self.model.canary else 0)

    async def _read(self) -> tuple[list[Shown], int, list[str]]:
        aliases, admin = self.here.registry.aliases, self.here.admin
        past: list[AliasRevision] = []
        if self.model.past:
            past = list((await aliases.revisions(admin, self.name, PageRequest.of(1000, ""))).rows)
        if self.model.targets:
            now = await aliases.get(admin, self.name)
            assert now.revision == len(self.model.past)
        async with self.here.registry.database.read() as session:
            query = text(
                "SELECT r.state FROM rollout r JOIN adapter a ON a.id = r.adapter_id"
                " WHERE a.name = :name ORDER BY r.started_at"
            )
            states = [row[0] for row in await session.execute(query, {"name": self.name.adapter})]
        shown = [Shown(row.number, row.canary_number or 0, row.canary_permille, row.deleted) for row in past[::-1]]
        return shown, states.count("RUNNING"), states


async def _outcomes(*steps: Awaitable[Any]) -> list[Any]:
    """Of steps at once: what each answered, or its error."""
    return await asyncio.gather(*steps, return_exceptions=True)


async def _world(url: str) -> World:
    registry = Registry(url, PEPPERS)
    key = await _first_admin(registry.database, PEPPERS)
    assert key is not None
    source = registry.snapshots()
    admin: Caller = (await source.start()).authenticate(key, NOW)
    return World(registry, source, admin, key)


def test_any_history(url: str) -> None:
    with asyncio.Runner() as runner:

        class Here(AliasMachine):
            here = runner.run(_world(url))
            run = staticmethod(runner.run)  # type: ignore[assignment]  # of coroutines alone

        try:
            run_state_machine_as_test(
                Here,
                settings=settings(
                    max_examples=8 if url.startswith("sqlite") else 4,
                    stateful_step_count=20,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(Here.here.registry.close())

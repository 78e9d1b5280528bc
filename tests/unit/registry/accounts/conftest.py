"""A tenant with one login, as two processes see it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from lorry import errors
from lorry.registry import Accounts, Caller, Login, PageRequest, Registry, SnapshotSource, WebSession
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

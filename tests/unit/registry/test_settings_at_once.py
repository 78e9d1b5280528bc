"""The same thing said by many at once: each is answered what is there then, and none is told to send it again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lorry.registry.limits.bounds import LimitValues
from lorry.registry.names import AdapterName
from tests.unit.registry.conftest import World
from tests.unit.registry.test_migrations import make_version

ROUNDS = 4
AT_ONCE = 15
Say = Callable[[World, int], Awaitable[str]]


async def grant(world: World, turn: int) -> str:
    return (await world.registry.grants.create(world.admin, f"t{turn}", "tenants/platform/adapters/a")).id


async def quota(world: World, turn: int) -> str:
    return (await world.registry.quotas.set(world.admin, f"t{turn}", None, LimitValues(concurrency=3))).row.id


async def pin(world: World, turn: int) -> str:
    await world.registry.grants.set_pin(world.admin, f"t{turn}", AdapterName("platform", "a", version=1))
    return ""


async def principal(world: World, turn: int) -> str:
    row, _ = await world.registry.keys.create(world.admin, f"t{turn}", "fresh", "member")
    return row.principal_id


@pytest.mark.parametrize("say", [grant, quota, pin, principal])
async def test_all_are_answered(world: World, say: Say) -> None:
    await make_version(world)
    for turn in range(ROUNDS):
        await world.registry.tenants.create(world.admin, f"t{turn}")
        if say is pin:
            await grant(world, turn)
        found = await asyncio.gather(*(say(world, turn) for _ in range(AT_ONCE)))
        assert len(set(found)) == 1

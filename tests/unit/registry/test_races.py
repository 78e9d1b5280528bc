"""Fifty at once make one name: one of them does, the others are told that it is taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from lorry import errors
from tests.unit.registry.conftest import TINY_CONFIG, World

AT_ONCE = 50
Make = Callable[[World, int], Awaitable[object]]


async def tenant(world: World, number: int) -> object:
    return await world.registry.tenants.create(world.admin, "one", f"try {number}")


async def adapter(world: World, number: int) -> object:
    return await world.registry.adapters.create(world.admin, "platform", "one", f"try {number}")


async def base(world: World, number: int) -> object:
    sha256 = f"{number:064x}"
    return await world.registry.bases.create(world.admin, "one", sha256, sha256, json.dumps(TINY_CONFIG))


@pytest.mark.parametrize(("make", "events"), [(tenant, 2), (adapter, 3), (base, 3)])
async def test_one_of_fifty_wins(world: World, make: Make, events: int) -> None:
    before = (await world.source.refresh()).epoch
    found = await asyncio.gather(*(make(world, number) for number in range(AT_ONCE)), return_exceptions=True)
    won = [one for one in found if not isinstance(one, BaseException)]
    assert len(won) == 1
    assert {type(one) for one in found if isinstance(one, BaseException)} == {errors.AlreadyExists}
    snapshot = await world.source.refresh()
    assert snapshot.epoch == before + 1
    noted = (await world.registry.audit.verify(world.admin, "platform")).events
    assert noted == events, "those that lost left nothing in the chain"
    assert world.source.full_loads == 1


async def test_fifty_equal_requests_are_one(world: World) -> None:
    """With one ``request_id``: one makes it, and all the others are answered it."""
    tries = (world.registry.keys.create(world.admin, "platform", "bot", "platform_admin", None, "r") for _ in range(50))
    answered = await asyncio.gather(*tries)
    assert len({row.id for row, _ in answered}) == 1
    assert len([text for _, text in answered if text]) == 1
    (row, text) = await world.registry.keys.create(world.admin, "platform", "bot", "platform_admin", None, "r")
    assert (row.id, text) == (answered[0][0].id, "")
    assert len((await world.source.refresh()).tables.keys) == 2

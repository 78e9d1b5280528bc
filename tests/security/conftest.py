"""One furnished platform for all walks: they change nothing of it that others look at, and prove that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.security.calls import CALLS
from tests.security.world import Names, World, world


@dataclass
class Street:
    """Two tenants who know nothing of each other, each with one of every kind of resource."""

    world: World
    anna: Names
    bert: Names


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def street(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Street]:
    async with world(tmp_path_factory.mktemp("street")) as here:
        for name in ("anna", "bert"):
            await here.tenant(name, "owner", "member")
        made = Street(here, await here.furnish("anna"), await here.furnish("bert"))
        path = "lorry.api.v1.GenerateService/Generate"
        assert (await here.call(path, CALLS[path].request(made.anna), here.keys["anna member"])).code == "OK"
        yield made

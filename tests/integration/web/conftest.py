"""One platform with two tenants for each test module: pages are read, and each test changes what is its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.web.world import World, world


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        await made.tenant("acme")
        await made.tenant("beta")
        await made.user("anna", "acme", "owner")
        await made.user("mark", "acme", "member")
        await made.user("vera", "acme", "viewer")
        await made.user("olga", "acme", "operator")
        await made.user("bert", "beta", "owner")
        await made.user("root", "platform", "platform_admin")
        yield made

"""What only a browser shows of pages: what is in sight, and what stays under the reader's hands while it is live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lorry.client import AsyncClient
from lorry.errors import ModelNotFound
from lorry_admin.web import WebServer, boards
from tests.integration.web.browser import Seen, browsing, needs_chromium
from tests.integration.web.world import PASSWORD, World

pytestmark = needs_chromium


@pytest.fixture
async def opened(here: World) -> AsyncIterator[Any]:
    server = WebServer(here.web)
    server.start()
    async with browsing(server.address) as made:
        yield made
    await server.stop(grace=0)


async def visible(seen: Seen, selector: str) -> bool:
    box = await seen.page.locator(selector).bounding_box()
    size = seen.page.viewport_size
    return bool(box) and box["x"] >= 0 and box["x"] + box["width"] <= size["width"]


async def test_a_phone_shows_where_one_is(opened: Any) -> None:
    seen: Seen = await opened("phone")
    await seen.log_in("anna", PASSWORD)
    for path in ("", "/usage", "/audit"):
        await seen.open(f"/tenants/acme{path}")
        assert await visible(seen, ".side [aria-current]"), path
    assert seen.complaints == []


async def test_actions_are_in_sight_on_a_wide_screen(here: World, opened: Any) -> None:
    """Rotate and Revoke, End, and an event's details: no table hides its buttons behind a scroll bar."""
    await here.admin.create_key("acme", "a-service-with-a-longer-name", "operator")
    await here.admin.create_key("acme", "evaluation", "member")
    seen: Seen = await opened("wide")
    await seen.log_in("anna", PASSWORD)
    for path, selector in (("keys", "tr button.danger"), ("audit", "td summary")):
        await seen.open(f"/tenants/acme/{path}")
        assert await visible(seen, f"{selector} >> nth=0"), path


async def test_what_is_marked_stays_while_the_board_is_live(
    here: World, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards.live_events, "__defaults__", (0.1, boards.LIVE_S))
    key = await here.admin.create_key("acme", "app", "member")
    await here.seen()
    seen: Seen = await opened("wide")
    await seen.log_in("anna", PASSWORD)
    async with AsyncClient(here.address, key.text) as client:

        async def fail(request_id: str) -> None:
            with pytest.raises(ModelNotFound):
                await client.generate("tenants/acme/adapters/none", "hi", max_tokens=1, request_id=request_id)

        await fail("r-first")
        await seen.open("/tenants/acme/requests")
        await seen.page.wait_for_selector("[data-live-state]:has-text('Live')")
        await seen.page.evaluate("getSelection().selectAllChildren(document.querySelector('code.id'))")
        await fail("r-second")
        await asyncio.sleep(1)
        assert await seen.page.evaluate("getSelection().toString()") == "r-first"
        assert await seen.page.locator("code.id:has-text('r-second')").count() == 0
        await seen.page.evaluate("getSelection().removeAllRanges()")
        await fail("r-third")
        await seen.page.wait_for_selector("code.id:has-text('r-second')")

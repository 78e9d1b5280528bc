"""A real browser on the dashboards: what it shows, and all that it complained of."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

playwright_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed; it is in lorry[dev]")
axe_api = pytest.importorskip("axe_playwright_python.async_playwright", reason="axe-playwright-python is in lorry[dev]")

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZES = {"wide": (1280, 800), "phone": (360, 740)}
needs_chromium = pytest.mark.skipif(
    not CHROMIUM.exists(), reason="no /usr/bin/chromium; on Debian: apt-get install chromium"
)


def screens() -> Path | None:
    """Where pictures go: ``LORRY_SCREENS``, or nowhere."""
    folder = os.environ.get("LORRY_SCREENS")
    return Path(folder) if folder else None


@dataclass
class Seen:
    """One page of a browser. ``complaints``: errors of its console, and requests that went elsewhere."""

    page: Any
    address: str
    complaints: list[str] = field(default_factory=list)

    async def open(self, path: str) -> None:
        response = await self.page.goto(f"{self.address}{path}")
        assert response is not None
        assert response.status == 200, (path, response.status)

    async def check(self, name: str, *, colours_alone: bool = False) -> None:
        """axe finds nothing serious, nothing spills over, and nobody complained. ``colours_alone``: of a page that was
        looked at whole in other colours."""
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if colours_alone:
            options["runOnly"] = ["color-contrast", "target-size"]
        found = await axe_api.Axe().run(self.page, options=options)
        bad = [one for one in found.response["violations"] if one["impact"] in ("serious", "critical")]
        told = [(one["id"], [node["html"][:160] for node in one["nodes"][:4]]) for one in bad]
        assert told == [], name
        spill = await self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert spill <= 0, f"{name} is {spill} px too wide"
        assert self.complaints == [], name

    async def turn(self, size: str, scheme: str) -> None:
        """The same page on another screen."""
        width, height = SIZES[size]
        await self.page.set_viewport_size({"width": width, "height": height})
        await self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")

    async def shoot(self, name: str, *, whole: bool = True) -> None:
        """A picture, where pictures are wanted; ``whole``: of all of the page, not of what a screen shows of it."""
        folder = screens()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            await self.page.evaluate("window.scrollTo(0, 0)")
            await self.page.screenshot(path=str(folder / f"{name}.png"), full_page=whole)

    async def log_in(self, username: str, password: str) -> None:
        await self.page.goto(f"{self.address}/login")
        await self.page.fill("#username", username)
        await self.page.fill("#password", password)
        await self.page.click("main button")
        await self.page.wait_for_selector("nav.side")

    async def said(self, words: str) -> None:
        """After a form: what was done."""
        await self.page.wait_for_selector(f".said:has-text('{words}')")


@asynccontextmanager
async def browsing(address: str) -> AsyncIterator[Any]:
    """A function that opens a page of some size and colours, with cookies of its own."""
    async with playwright_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)

        async def opened(size: str = "wide", scheme: str = "light", **options: Any) -> Seen:
            width, height = SIZES[size]
            context = await browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", **options
            )
            context.set_default_timeout(20_000)
            return follow(await context.new_page(), address)

        try:
            yield opened
        finally:
            await browser.close()


def follow(page: Any, address: str) -> Seen:
    """Hears what the page complains of. Every question is answered with yes."""
    seen = Seen(page, address)
    page.on("console", lambda one: seen.complaints.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("request", lambda one: _local(seen, one.url))
    page.on("dialog", lambda dialog: dialog.accept())
    return seen


def _local(seen: Seen, url: str) -> None:
    if not url.startswith((seen.address, "data:", "blob:")):
        seen.complaints.append(f"a request to {url}")


__all__ = ["SIZES", "Seen", "browsing", "follow", "needs_chromium", "screens"]

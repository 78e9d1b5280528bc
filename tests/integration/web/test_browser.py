"""A real browser through the main pages: axe, the console, the network, light and dark, phone and wide.

``LORRY_SCREENS=docs/screens`` writes pictures of them there.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lorry_admin.web import WebServer
from tests.integration.web.filled import fill
from tests.integration.web.world import BASE, World, world
from tests.unit.adapters import craft

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
SIZES = {"wide": (1440, 900), "phone": (360, 740)}
PASSWORD = "a long password"
pytestmark = pytest.mark.skipif(
    not CHROMIUM.exists(), reason="no /usr/bin/chromium; on Debian: apt-get install chromium"
)


@dataclass
class Seen:
    """One page of a browser, and what it complained of."""

    page: Any
    address: str
    complaints: list[str] = field(default_factory=list)

    async def open(self, path: str) -> None:
        response = await self.page.goto(f"{self.address}{path}")
        assert response is not None
        assert response.status == 200, (path, response.status)

    async def check(self, name: str) -> None:
        """axe finds nothing serious, nothing spills over, and nobody complained."""
        found = await axe_api.Axe().run(self.page)
        bad = [one for one in found.response["violations"] if one["impact"] in ("serious", "critical")]
        told = [(one["id"], [node["html"][:160] for node in one["nodes"][:4]]) for one in bad]
        assert told == [], name
        spill = await self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert spill <= 0, f"{name} is {spill} px too wide"
        assert self.complaints == [], name

    async def shoot(self, name: str) -> None:
        folder = os.environ.get("LORRY_SCREENS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            await self.page.screenshot(path=f"{folder}/{name}.png", full_page=True)

    async def log_in(self, username: str) -> None:
        await self.page.goto(f"{self.address}/login")
        await self.page.fill("#username", username)
        await self.page.fill("#password", PASSWORD)
        await self.page.click("main button")
        await self.page.wait_for_selector("nav.side")


@asynccontextmanager
async def browsing(address: str) -> AsyncIterator[Any]:
    """A function that opens a page of some size and colours."""
    async with playwright_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)

        async def opened(size: str = "wide", scheme: str = "light", **options: Any) -> Seen:
            width, height = SIZES[size]
            context = await browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", **options
            )
            context.set_default_timeout(20_000)
            seen = Seen(await context.new_page(), address)
            seen.page.on("console", lambda one: seen.complaints.append(one.text) if one.type == "error" else None)
            seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
            seen.page.on("request", lambda one: _local(seen, one.url))
            return seen

        try:
            yield opened
        finally:
            await browser.close()


def _local(seen: Seen, url: str) -> None:
    if not url.startswith((seen.address, "data:", "blob:")):
        seen.complaints.append(f"a request to {url}")


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[World, str]]:
    async with world(
        folder, real_accounts=True, http_url="https://api.lorry.test", grpc_address="lorry.test:443"
    ) as here:
        await here.tenant("acme")
        await here.tenant("beta")
        for tenant, user, role in (("acme", "anna", "owner"), ("platform", "root", "admin")):
            await here.admin.create_user(tenant, user, role, password=PASSWORD)
        server = WebServer(here.web)
        server.start()
        try:
            yield here, server.address
        finally:
            await server.stop(grace=0)


async def test_pages_of_a_tenant_and_of_an_operator(tmp_path: Path) -> None:
    async with served(tmp_path) as (here, address), browsing(address) as opened:
        await fill(here)
        tenant = {
            "overview": "/tenants/acme?period=7d",
            "adapters": "/tenants/acme/adapters",
            "adapter": "/tenants/acme/adapters/pirate",
            "version": "/tenants/acme/adapters/pirate/versions/1",
            "diff": "/tenants/acme/adapters/pirate/diff?a=1&b=2",
            "register": "/tenants/acme/register",
            "playground": "/tenants/acme/playground",
            "keys": "/tenants/acme/keys",
            "users": "/tenants/acme/users",
            "usage": "/tenants/acme/usage?by=adapter",
            "quotas": "/tenants/acme/quotas",
            "prices": "/tenants/acme/prices",
            "requests": "/tenants/acme/requests",
            "audit": "/tenants/acme/audit",
        }
        for size, scheme in (("wide", "light"), ("phone", "dark")):
            seen = await opened(size, scheme)
            await seen.open("/login")
            await seen.check("login")
            await seen.shoot(f"login-{size}-{scheme}")
            await seen.log_in("anna@acme")
            for name, path in tenant.items():
                await seen.open(path)
                if name == "adapters":
                    await seen.page.wait_for_selector("[data-live-place]:has-text('store')")
                await seen.check(f"{name} {size} {scheme}")
                await seen.shoot(f"{name}-{size}-{scheme}")
        root = await opened("wide", "dark")
        await root.log_in("root@platform")
        for name, path in {
            "tenants": "/operator/tenants",
            "tenant": "/operator/tenants/acme",
            "replicas": "/operator/replicas",
            "bases": "/operator/bases",
            "memory": "/operator/memory",
            "queue": "/operator/queue",
            "requests": "/operator/requests",
            "tenant-quotas": "/tenants/acme/quotas",
        }.items():
            await root.open(path)
            await root.check(name)
            await root.shoot(f"{name}-wide-dark")


async def test_registering_playing_and_a_key(tmp_path: Path) -> None:
    folder = craft.write_adapter(tmp_path / "pirate")
    bad = craft.write_adapter(tmp_path / "bad", craft.CONFIG | {"r": 0})
    async with served(tmp_path) as (here, address), browsing(address) as opened:
        seen = await opened()
        page = seen.page
        await seen.log_in("anna@acme")

        # Refused: each row says what to do.
        await seen.open("/tenants/acme/register")
        await page.fill("#adapter", "pirate")
        await page.set_input_files("#files", [str(path) for path in sorted(bad.iterdir())])
        await page.click("#send")
        await page.wait_for_selector("#result a")
        assert "refused" in await page.text_content("#phase")
        assert await page.locator("#checks .state.bad").count() >= 1
        await seen.check("a refusal")

        # READY.
        await page.set_input_files("#files", [str(path) for path in sorted(folder.iterdir())])
        await page.click("#send")
        await page.wait_for_selector("#phase:has-text('is ready')")
        await seen.shoot("registered-wide-light")
        await seen.check("registered")
        await page.click("#result a")
        await page.wait_for_selector("h1 .state.good")
        digest = await page.text_content("dd code.long")
        await here.seen()

        # Two answers side by side, each with its digest.
        await seen.open("/tenants/acme/playground")
        await page.fill("#model_a", "tenants/acme/adapters/pirate")
        await page.fill("#model_b", BASE)
        await page.fill("#prompt", "the lorry")
        await page.click("#run")
        for side in ("a", "b"):
            await page.wait_for_selector(f"#side-{side} [data-status]:has-text('complete')", state="attached")
        facts = await page.text_content("#side-a [data-facts]")
        assert digest in facts
        assert (await page.text_content("#side-a [data-text]")).strip()
        assert (await page.text_content("#side-b [data-text]")).strip()
        await page.click("#as-code")
        await page.wait_for_selector("#code:not([hidden])")
        await seen.check("playground")
        await seen.shoot("played-wide-light")
        code = await page.text_content("#code")
        assert "lorry.test:443" in code
        assert "https://api.lorry.test/v1/chat/completions" in code

        # A session that ends meanwhile: the prompt stays, and goes on after a login in another tab.
        await page.context.clear_cookies()
        await page.click("#run")
        await page.wait_for_selector("#side-a [data-problem] a")
        assert await page.input_value("#prompt") == "the lorry"
        seen.complaints.clear()  # the browser's own words about a 401
        tab = Seen(await page.context.new_page(), address)
        await tab.log_in("anna@acme")
        await page.click("#run")
        await page.wait_for_selector("#side-a [data-status]:has-text('complete')", state="attached")
        seen.complaints.clear()

        # A key, shown once.
        await seen.open("/tenants/acme/keys")
        await page.fill("#principal", "billing")
        await page.click("main form button.primary")
        await page.wait_for_selector("code.secret")
        assert (await page.text_content("code.secret")).startswith("lorry_")
        await seen.check("a new key")
        await page.click("text=Done, I kept it")
        page.on("dialog", lambda dialog: dialog.accept())
        await page.click("button.danger")
        await page.wait_for_selector(".said")
        assert "Key revoked" in await page.text_content(".said")
        await seen.check("keys")

        # By keyboard: the first stop leads past the navigation.
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"


async def test_without_scripts(tmp_path: Path) -> None:
    """Every form works."""
    folder = craft.write_adapter(tmp_path / "pirate")
    async with served(tmp_path) as (here, address), browsing(address) as opened:
        seen = await opened(java_script_enabled=False)
        page = seen.page
        await seen.log_in("anna@acme")
        await seen.open("/tenants/acme/register")
        await page.fill("#adapter", "pirate")
        await page.set_input_files("#files", [str(path) for path in sorted(folder.iterdir())])
        await page.click("#send")
        await page.wait_for_selector("h1 .state.good")
        await here.seen()
        await seen.open("/tenants/acme/playground")
        await page.fill("#prompt", "the lorry")
        await page.click("#run")
        await page.wait_for_selector("#side-a dd code.long")
        assert seen.complaints == []

"""``lorry serve`` as its users start it, with the real model, and an operator who sets it up in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorry.client import AsyncClient
from lorry.client.admin import AdminClient
from lorry.errors import LorryError
from tests.integration.web.browser import Seen, browsing

LORRY = str(Path(sys.executable).with_name("lorry"))
BASE_NAME = "smollm2-135m"
BASE = f"models/{BASE_NAME}"
OPERATOR, PASSWORD = "root@platform", "a password of an operator"
SMALL = ("--context-tokens", "1024", "--max-sequences", "4", "--token-budget", "64")
"""The engine warms up at each number of rows that it may run, which the real model takes its time for."""
READY_S, LEDGER_S = 90.0, 10.0
TRAFFIC_S = float(os.environ.get("LORRY_SCREENS_TRAFFIC_S", "180"))
EXAMPLES = Path(__file__).parents[3] / "examples" / "adapters"
QUESTIONS = ("What is the capital of France?", "Why do birds sing?", "Name three animals that live in the sea.")


@dataclass
class Served:
    """What ``lorry serve`` said where things are."""

    address: str
    http: str
    web: str
    admin_key: str
    base_sha256: str
    tokenizer_sha256: str


@dataclass
class Journey:
    """A served platform, an administrator's client, and a browser. ``passwords`` by user's name."""

    served: Served
    admin: AdminClient
    opened: Any
    base_dir: Path
    passwords: dict[str, str]

    async def logged_in(self, username: str, size: str = "wide", scheme: str = "light", **options: Any) -> Seen:
        seen: Seen = await self.opened(size, scheme, **options)
        await seen.log_in(username, self.passwords[username])
        return seen


@asynccontextmanager
async def serving(home: Path, base_dir: Path, *flags: str) -> AsyncIterator[Served]:
    """On free ports; ended as by Ctrl-C, or killed with what it started."""
    child = await asyncio.create_subprocess_exec(
        LORRY, "serve", "--home", str(home), "--base", str(base_dir), "--port", "0", "--ops-port", "0", *flags,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert child.stdout is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(READY_S):
            while line := (await child.stdout.readline()).decode():
                said.append(line.rstrip())
                if line.startswith("ready"):
                    break
        whole = "\n".join(said)

        def found(pattern: str) -> str:
            match = re.search(pattern, whole)
            assert match is not None, whole
            return match[1]

        yield Served(
            found(r"gateway and admin API: (\S+)"),
            found(r"OpenAI's API: (\S+)"),
            found(r"dashboards: (\S+)"),
            found(r"Admin API key.*: (\S+)"),
            found(r"base\s+sha256 ([0-9a-f]{64})"),
            found(r"tokenizer\s+sha256 ([0-9a-f]{64})"),
        )
    finally:
        if child.returncode is None:
            child.terminate()
            try:
                async with asyncio.timeout(20):
                    await child.communicate()
            except TimeoutError:
                child.kill()
                await child.wait()


@asynccontextmanager
async def journey(folder: Path, base_dir: Path) -> AsyncIterator[Journey]:
    """Set up by its operator: the base, tenants acme and globex, an owner and a viewer of acme."""
    async with (
        serving(folder / "home", base_dir, *SMALL) as served,
        AdminClient(served.address, served.admin_key) as admin,
        browsing(served.web) as opened,
    ):
        username, _, tenant = OPERATOR.partition("@")
        await admin.create_user(tenant, username, "admin", password=PASSWORD)
        made = Journey(served, admin, opened, base_dir, {OPERATOR: PASSWORD})
        await _set_up(made)
        yield made


async def _set_up(here: Journey) -> None:
    """Every form of an operator's, one after the other."""
    seen = await here.opened("wide", "dark")
    page = seen.page
    await seen.open("/login")
    await seen.check("login")
    await seen.log_in(OPERATOR, PASSWORD)
    await seen.open("/operator/bases")
    await page.fill("#name", BASE_NAME)
    await page.fill("#base_sha256", here.served.base_sha256)
    await page.fill("#tokenizer_sha256", here.served.tokenizer_sha256)
    await page.fill("#config_json", (here.base_dir / "config.json").read_text())
    await page.click("text=Register >> nth=-1")
    await page.wait_for_selector(f"text={here.served.base_sha256}")
    for tenant, name in (("acme", "Acme Data"), ("globex", "Globex Games")):
        await seen.open("/operator/tenants")
        await page.fill("#tenant", tenant)
        await page.fill("#display_name", name)
        await page.click("text=Create tenant")
        await seen.said("created")
        await page.fill("#resource", BASE)
        await page.click("text=Give grant")
        await page.wait_for_selector(f"th:has-text('{BASE}')")
    await seen.open("/tenants/acme/prices")
    for field, value in {"currency": "EUR", "prompt": "0.15", "cached_prompt": "0.05", "output": "0.60"}.items():
        await page.fill(f"#{field}", value)
    await page.click("text=Set price")
    await page.wait_for_selector("td:has-text('0.60'), td:has-text('0.6')")
    await seen.open("/tenants/acme/quotas")
    await page.fill("#q-tokens_per_month", "2000000")
    await page.fill("#q-concurrency", "16")
    await page.click("main button:has-text('Set limits')")
    await page.wait_for_selector("meter")
    for user, role in (("anna", "owner"), ("vera", "viewer")):
        await seen.open("/tenants/acme/users")
        await page.fill("#user", user)
        await page.select_option("#role", role)
        await page.click("text=Create user")
        here.passwords[f"{user}@acme"] = (await page.text_content("code.secret")).strip()
    assert seen.complaints == []


async def traffic(here: Journey) -> None:
    """Some minutes of real calls, for pictures: adapters and the base, answers that are left and some that are
    refused."""
    for name, words in (("summaries", "bullets"), ("support", "cheerful"), ("web-snippets", "html")):
        full = f"tenants/acme/adapters/{name}"
        await here.admin.create_adapter("acme", name, name.capitalize().replace("-", " "))
        await here.admin.push(full, EXAMPLES / words, BASE)
        await here.admin.set_alias(full, "prod", 1)
    keys = [(await here.admin.create_key("acme", who, "member")).text for who in ("website", "search", "nightly")]
    draw = random.Random(3)
    models = [f"tenants/acme/adapters/{name}" for name in ("summaries", "support@prod", "web-snippets", "voice@prod")]
    until = time.monotonic() + TRAFFIC_S

    async def caller(key: str) -> None:
        async with AsyncClient(here.served.address, key) as client:
            while time.monotonic() < until:
                asked: dict[str, Any] = {"max_tokens": draw.randint(4, 40)}
                if draw.random() < 0.06:
                    asked = {"max_tokens": 40, "ttft_timeout_s": 0.05}
                stream = client.stream(
                    draw.choice([*models, BASE]),
                    messages=[{"role": "user", "content": draw.choice(QUESTIONS)}],
                    **asked,
                )
                left = 3 if draw.random() < 0.08 else 1 << 30
                with contextlib.suppress(LorryError):
                    async with stream:
                        async for _ in stream:
                            left -= 1
                            if not left:
                                break
                await asyncio.sleep(draw.random() * 3)  # people think

    await asyncio.gather(*(caller(key) for key in keys))
    await asyncio.sleep(2)  # the ledger's drain


__all__ = ["BASE", "BASE_NAME", "LEDGER_S", "OPERATOR", "Journey", "Served", "journey", "serving", "traffic"]

"""A real browser through the dashboards of ``lorry serve`` with the real model: as its operator, and as a tenant.

``LORRY_SCREENS=docs/screens`` writes the pictures of the documentation, of what the test did.
"""

from __future__ import annotations

import asyncio
import csv
import io
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from tests.integration.web.browser import Seen, follow, needs_chromium, screens
from tests.integration.web.served import BASE, BASE_NAME, LEDGER_S, OPERATOR, Journey, journey, traffic

EXAMPLES = Path(__file__).parents[3] / "examples" / "adapters"
VOICE = "tenants/acme/adapters/voice"
QUESTION = "What is the capital of France?"
HOUR = timedelta(hours=1)
pytestmark = [
    needs_chromium,
    pytest.mark.model,
    pytest.mark.timeout(180 if screens() is None else 900),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory, base_dir: Path) -> AsyncIterator[Journey]:
    async with journey(tmp_path_factory.mktemp("journey"), base_dir) as made:
        yield made


def spoilt(folder: Path) -> Path:
    """The JSON adapter with one value that is no number."""
    shutil.copytree(EXAMPLES / "json", folder)
    weights = folder / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    at = 8 + int.from_bytes(data[:8], "little")
    data[at : at + 2] = b"\xc0\x7f"
    weights.write_bytes(data)
    return folder


async def register(seen: Seen, adapter: str, folder: Path, ends: str) -> None:
    page = seen.page
    await seen.open("/tenants/acme/register")
    await page.fill("#adapter", adapter)
    await page.set_input_files("#files", [str(path) for path in sorted(folder.iterdir())])
    await page.click("#send")
    await page.wait_for_selector(f"#phase:has-text('{ends}')")


async def ask(seen: Seen, prompt: str, *, a: str, b: str = "", tokens: int = 24) -> None:
    page = seen.page
    await seen.open("/tenants/acme/playground")
    await page.fill("#model_a", a)
    await page.fill("#model_b", b)
    await page.fill("#prompt", prompt)
    await page.click("details.params summary")
    await page.fill("#temperature", "0")
    await page.fill("#max_tokens", str(tokens))
    await page.click("#run")
    await answered(seen, *("ab" if b else "a"))


async def answered(seen: Seen, *sides: str) -> None:
    for side in sides:
        await seen.page.wait_for_selector(f"#side-{side} [data-status]:has-text('complete')", state="attached")


async def test_an_adapter_from_its_folder_to_its_users_and_back(here: Journey, tmp_path: Path) -> None:
    seen = await here.logged_in("anna@acme")
    page = seen.page

    # Refused: each row says what to do, and the version keeps its report.
    await register(seen, "voice", spoilt(tmp_path / "spoilt"), "refused")
    assert await page.locator("#checks .state.bad").count() >= 1
    await seen.check("a refusal")
    await seen.shoot("register")
    await page.click("#result a")
    await page.wait_for_selector("h1 .state.bad")

    # READY, twice: answers in JSON, then as a pirate.
    digests: dict[int, str] = {}
    for number, voice in ((2, "json"), (3, "pirate")):
        await register(seen, "voice", EXAMPLES / voice, f"Version {number} is ready")
        await page.click("#result a")
        await page.wait_for_selector("h1 .state.good")
        digests[number] = await page.text_content("dd code.long")
    assert len(set(digests.values())) == 2

    # Both side by side, each with the digest of its own bytes as the engine states it.
    await ask(seen, QUESTION, a=f"{VOICE}/versions/2", b=f"{VOICE}/versions/3", tokens=28)
    texts = {}
    for side, number in (("a", 2), ("b", 3)):
        assert digests[number] in await page.text_content(f"#side-{side} [data-facts]")
        texts[number] = (await page.text_content(f"#side-{side} [data-text]")).strip()
    assert "{" in texts[2], texts
    assert texts[2] != texts[3]
    await page.click("details.params summary")
    await seen.shoot("playground")
    await page.click("#as-code")
    await page.wait_for_selector("#code:not([hidden])")
    assert here.served.address in await page.text_content("#code")
    await seen.check("playground")

    # A session that ends meanwhile: the prompt stays, and goes on after a login in another tab.
    await page.context.clear_cookies()
    await page.click("#run")
    await page.wait_for_selector("#side-a [data-problem] a")
    assert await page.input_value("#prompt") == QUESTION
    tab = follow(await page.context.new_page(), here.served.web)
    await tab.log_in("anna@acme", here.passwords["anna@acme"])
    await page.fill("#model_b", "")
    await page.click("details.params summary")
    await page.fill("#max_tokens", "4")
    await page.click("#run")
    await answered(seen, "a")
    seen.complaints.clear()  # the browser's own words about a 401

    # An alias on the first, a canary of the second, promoted, and taken back.
    await seen.open(f"/{VOICE}")
    await page.fill("#alias-new", "prod")
    await page.select_option("#alias-version", "2")
    await page.click("text=Set alias")
    await page.wait_for_selector("h3:has-text('version 2')")
    await page.click("summary:has-text('Start a canary')")
    await page.select_option("#canary-v-1", "3")
    await page.fill("#canary-p-1", "250")
    await page.click("text=Set canary")
    await page.wait_for_selector("text=gets 25.0% of sticky keys")
    await seen.check("a canary")
    await seen.shoot("adapter")
    await page.click("text=Promote canary")
    await page.wait_for_selector("h3:has-text('version 3')")
    assert await answering(seen, f"{VOICE}@prod") == digests[3]
    await seen.open(f"/{VOICE}")
    await page.click("text=Roll back")
    await page.wait_for_selector("h3:has-text('version 2')")
    assert await answering(seen, f"{VOICE}@prod") == digests[2]
    assert seen.complaints == []


async def test_a_key_until_it_is_refused(here: Journey) -> None:
    seen = await here.logged_in("anna@acme")
    page = seen.page
    await seen.open("/tenants/acme/keys")
    await page.fill("#principal", "billing")
    await page.click("main form button.primary")
    key = (await page.text_content("code.secret")).strip()
    await seen.check("a new key")
    body = {"model": BASE, "max_tokens": 4, "messages": [{"role": "user", "content": QUESTION}]}
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=30) as client:
        url = f"{here.served.http}/chat/completions"
        assert (await client.post(url, json=body)).status_code == 200
        await page.click("text=Done, I kept it")
        assert key not in await page.content()
        await page.click("tr:has-text('billing') button.danger")
        await seen.said("Key revoked")
        async with asyncio.timeout(5):
            while (answer := await client.post(url, json=body)).status_code == 200:
                pass
        assert answer.status_code == 401
    await page.wait_for_selector("tr:has-text('billing') .state:has-text('revoked')")
    await seen.check("keys")

    # By keyboard: the first stop leads past the navigation.
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "main"


async def test_forged_forms_and_other_tenants_pages(here: Journey) -> None:
    seen = await here.logged_in("anna@acme")
    page = seen.page
    await seen.open("/tenants/acme/keys")
    token = await page.get_attribute('meta[name="csrf"]', "content")
    fields = {"principal": "evil", "role": "owner"}
    for sent, headers in (
        ({"csrf": "0" * len(token)}, {"sec-fetch-site": "same-origin"}),
        ({}, {"sec-fetch-site": "same-origin"}),
        ({"csrf": token}, {"sec-fetch-site": "cross-site", "origin": "https://elsewhere.test"}),
    ):
        form = fields | sent
        answer = await page.request.post(f"{here.served.web}/tenants/acme/keys", form=form, headers=headers)
        assert answer.status == 403, sent
    assert "evil" not in [one.principal async for one in here.admin.list_keys("acme")]
    said = set()
    for tenant in ("globex", "nobody"):
        for path in ("", "/adapters", "/keys", "/usage.csv", "/adapters/voice"):
            answer = await page.goto(f"{here.served.web}/tenants/{tenant}{path}")
            assert answer.status == 404, path
            said.add(await page.text_content("main"))
    answer = await page.goto(f"{here.served.web}/operator/tenants")
    assert answer.status == 404
    said.add(await page.text_content("main"))
    assert len(said) == 1, "a page that is not there, whatever it would have been"


async def test_the_file_of_usage_adds_up_to_the_ledger(here: Journey) -> None:
    seen = await here.logged_in("anna@acme")
    page = seen.page
    await ask(seen, "Why is the sky blue?", a=BASE, tokens=6)
    now = datetime.now(UTC)

    async def total() -> Any:
        (found,) = [one async for one in here.admin.query_usage("acme", now - timedelta(days=2), now + HOUR)]
        return found

    ledger_id = (await page.text_content("#side-a [data-facts] div:has-text('Ledger') dd")).strip()
    async with asyncio.timeout(LEDGER_S):
        while ledger_id not in (text := await export(seen)):
            await asyncio.sleep(0.2)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    sums = await total()
    assert len(rows) == sums.requests
    await seen.open("/tenants/acme/usage")
    shown = await page.text_content("dl.tiles")
    for column in ("prompt_tokens", "cached_prompt_tokens", "output_tokens"):
        added = sum(int(row[column]) for row in rows)
        assert added == getattr(sums, column), column
        assert column == "cached_prompt_tokens" or f"{added:,}" in shown


async def export(seen: Seen) -> str:
    await seen.open("/tenants/acme/usage")
    async with seen.page.expect_download() as coming:
        await seen.page.click("text=Download rows")
    path = await (await coming.value).path()
    return str(Path(path).read_text(encoding="utf-8"))


async def answering(seen: Seen, model: str) -> str:
    """The digest of what answers now."""
    await ask(seen, QUESTION, a=model, tokens=2)
    facts = seen.page.locator("#side-a [data-facts] div:has-text('Digest') code")
    return str(await facts.text_content())


SHOWN = ("overview", "adapters", "usage", "tenants", "replicas", "memory", "requests", "audit")
"""In the documentation, beside what the tests above did."""
TENANT_PAGES = {
    "overview": "/tenants/acme?period=1h",
    "overview-month": "/tenants/acme?period=30d",
    "adapters": "/tenants/acme/adapters",
    "adapter": f"/{VOICE}",
    "version": f"/{VOICE}/versions/2",
    "report": f"/{VOICE}/versions/1",
    "diff": f"/{VOICE}/diff?a=2&b=3",
    "history": f"/{VOICE}/aliases/prod",
    "register": "/tenants/acme/register",
    "playground": "/tenants/acme/playground",
    "keys": "/tenants/acme/keys",
    "users": "/tenants/acme/users",
    "usage": "/tenants/acme/usage?by=adapter",
    "quotas": "/tenants/acme/quotas",
    "prices": "/tenants/acme/prices",
    "requests": "/tenants/acme/requests",
    "audit": "/tenants/acme/audit",
    "account": "/account",
}
OPERATOR_PAGES = {
    "tenants": "/operator/tenants",
    "tenant": "/operator/tenants/acme",
    "replicas": "/operator/replicas",
    "bases": "/operator/bases",
    "memory": "/operator/memory",
    "queue": "/operator/queue",
    "requests": "/operator/requests",
    "base": f"/operator/bases/{BASE_NAME}",
    "tenant-quotas": "/tenants/acme/quotas",
}


async def test_every_page_of_a_tenant(here: Journey) -> None:
    """After the tests above: with what they left to see."""
    if screens() is not None:
        await traffic(here)
    seen = await here.logged_in("anna@acme")
    for name, path in TENANT_PAGES.items():
        await seen.open(path)
        await seen.check(name)
        if name in SHOWN:
            await seen.shoot(name)
        await seen.turn("phone", "dark")
        await seen.check(f"{name} on a phone", colours_alone=True)
        await seen.turn("wide", "light")
    phone = await here.logged_in("anna@acme", "phone", "dark")
    await phone.open(TENANT_PAGES["overview"])
    await phone.check("overview on a phone", colours_alone=True)
    await phone.shoot("phone", whole=False)


async def test_every_page_of_an_operator(here: Journey) -> None:
    seen = await here.logged_in(OPERATOR, scheme="dark")
    for name, path in OPERATOR_PAGES.items():
        await seen.open(path)
        await seen.check(name)
        if name in SHOWN:
            await seen.shoot(name)


async def test_every_form_works_without_scripts(here: Journey) -> None:
    seen = await here.logged_in("anna@acme", java_script_enabled=False)
    page = seen.page
    await seen.open("/tenants/acme/register")
    await page.fill("#adapter", "bullets")
    await page.set_input_files("#files", [str(path) for path in sorted((EXAMPLES / "bullets").iterdir())])
    await page.click("#send")
    await page.wait_for_selector("h1 .state.good")
    digest = await page.text_content("dd code.long")
    await seen.open("/tenants/acme/playground?max_tokens=3")
    await page.fill("#model_a", "tenants/acme/adapters/bullets")
    await page.fill("#prompt", QUESTION)
    await page.click("#run")
    await page.wait_for_selector("#side-a dd code.long")
    assert await page.text_content("#side-a dd code.long") == digest
    assert seen.complaints == []

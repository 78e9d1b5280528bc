"""A session that ends in the middle of a form: nothing is done, and nothing is lost."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from tests.integration.web.world import PASSWORD, Browser, World


def field(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found is not None, page
    return unescape(found[1])


async def again(browser: Browser, response: Any) -> str:
    """Logs in on the page that came, and answers what comes then."""
    assert response.status_code == 401
    assert "Your session has ended" in response.text
    fields = {"username": "anna", "password": PASSWORD, "kept": field(response.text, "kept")}
    page = await browser.post("/login", fields)
    assert page.status_code == 200, page.text
    return page.text


async def test_a_form_comes_back_filled_in_and_can_be_sent(here: World) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/keys")
    here.accounts.end_all()
    fields = {"principal": "o'brien\"<x>", "role": "member", "days": "7"}
    response = await anna.post("/tenants/acme/keys", fields)
    assert [key.principal async for key in here.admin.list_keys("acme") if key.principal.startswith("o")] == []
    page = await again(anna, response)
    assert {name: field(page, name) for name in fields} == fields
    assert 'action="/tenants/acme/keys"' in page
    assert "nothing was done with it yet" in page
    sent = await anna.post("/tenants/acme/keys", fields | {"principal": "obrien"})
    assert sent.status_code == 200
    assert "only time that the key is shown" in sent.text


async def test_long_text_and_hidden_fields_come_back(here: World) -> None:
    await here.adapter("acme", "pirate")
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/playground")
    here.accounts.end_all()
    prompt = "first line\n<b>second</b>\n" + "x" * 5000
    page = await again(anna, await anna.post("/tenants/acme/playground", {"prompt": prompt, "etag": "e"}))
    assert unescape(re.findall(r'<textarea[^>]*name="prompt"[^>]*>\n(.*?)</textarea>', page, re.S)[0]) == prompt
    assert '<input type="hidden" name="etag" value="e">' in page


async def test_a_form_with_files_keeps_its_text(here: World) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/register")
    here.accounts.end_all()
    files = [("files", ("adapter_model.safetensors", b"x" * 300_000, "application/octet-stream"))]
    fields = {"adapter": "pirate", "display_name": "Arr", "base": "models/tiny"}
    page = await again(anna, await anna.post("/tenants/acme/register", fields, files=files))
    assert {name: field(page, name) for name in fields} == fields
    assert 'enctype="multipart/form-data"' in page
    assert "Choose the files again" in page


async def test_no_password_is_kept(here: World) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/account")
    here.accounts.end_all()
    fields = {"password": "present-secret", "new_password": "future-secret", "again": "future-secret"}
    response = await anna.post("/account/password", fields)
    assert response.status_code == 401
    assert "secret" not in response.text
    assert 'name="kept"' not in response.text
    mixed = await again(anna, await anna.post("/tenants/acme/keys", fields | {"principal": "p"}))
    assert "secret" not in mixed


async def test_what_is_too_large_is_said_to_be_lost(here: World) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/playground")
    here.accounts.end_all()
    response = await anna.post("/tenants/acme/playground", {"prompt": "x" * (100 << 10)})
    assert response.status_code == 401
    assert "could not be kept" in response.text
    assert 'name="kept"' not in response.text


async def test_a_forged_form_is_not_kept(here: World) -> None:
    stranger = here.browser()
    response = await stranger.http.post(
        "/tenants/acme/keys", data={"principal": "evil"}, headers={"sec-fetch-site": "cross-site"}
    )
    assert response.status_code == 403
    assert "evil" not in response.text


async def test_pages_come_back_to_where_they_were(here: World) -> None:
    browser = here.browser()
    gone = await browser.get("/tenants/acme/usage?by=key")
    assert gone.headers["location"] == "/login?next=%2Ftenants%2Facme%2Fusage%3Fby%3Dkey"
    page = await browser.get(gone.headers["location"])
    back = await browser.post("/login", {"username": "anna", "password": PASSWORD, "next": field(page.text, "next")})
    assert back.headers["location"] == "/tenants/acme/usage?by=key"


async def test_scripts_are_told(here: World) -> None:
    anna = await here.logged_in("anna")
    here.accounts.end_all()
    response = await anna.script("/tenants/acme/playground/stream", {"side": "a"})
    assert response.status_code == 401
    assert response.json()["error"]["reason"] == "SIGNED_OUT"

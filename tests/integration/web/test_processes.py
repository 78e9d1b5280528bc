"""Two of the web app's processes, each with a registry's connections of its own, over HTTP on either database: they
share nothing but that database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path

import httpx2 as httpx
import pytest

from lorry.registry import Registry
from lorry_admin.web import WebConfig, WebServer, build_web
from lorry_admin.web.cookies import SESSION
from tests.integration.web.test_expired import field
from tests.integration.web.world import CHEAP, Browser, World, world
from tests.unit.registry.conftest import postgres_template, postgres_url, sqlite_template, url

__all__ = ["postgres_template", "postgres_url", "sqlite_template", "url"]

PASSWORD = "a long password"


class Tab(Browser):
    """A browser's page at one process's address. ``jar``: the cookies of a browser, which knows no ports."""

    def __init__(self, address: str, jar: CookieJar) -> None:
        headers = {"sec-fetch-site": "same-origin", "origin": address}
        self.http = httpx.AsyncClient(base_url=address, headers=headers, timeout=30, cookies=jar)
        self.csrf = ""


@dataclass
class Two:
    here: World
    addresses: tuple[str, str]

    def tabs(self) -> tuple[Tab, Tab]:
        """Of one browser, at each process; closed with the platform."""
        jar = CookieJar()
        made = tuple(Tab(address, jar) for address in self.addresses)
        self.here.browsers += made
        return made[0], made[1]


@pytest.fixture
async def two(tmp_path: Path, url: str) -> AsyncIterator[Two]:
    async with world(tmp_path, real_accounts=True, url=url) as here:
        await here.tenant("acme")
        for user, role in (("anna", "owner"), ("olga", "operator")):
            await here.admin.create_user("acme", user, role, password=PASSWORD)
        other = Registry(url, here.registry.peppers, CHEAP)
        servers = [WebServer(here.web), WebServer(build_web(WebConfig(), other.accounts, here.address))]
        try:
            for server in servers:
                server.start()
            yield Two(here, (servers[0].address, servers[1].address))
        finally:
            for server in servers:
                await server.stop(grace=0)
            await other.close()


async def test_a_session_of_one_is_one_of_the_other(two: Two) -> None:
    first, second = two.tabs()
    assert (await first.log_in("anna@acme", PASSWORD)).status_code == 303
    assert (await second.get("/tenants/acme")).status_code == 200
    await first.get("/tenants/acme/keys")
    token = first.csrf
    await second.get("/tenants/acme/keys")
    assert second.csrf == token, "a page of one is sent to the other"
    made = await second.post("/tenants/acme/keys", {"principal": "p", "role": "member"})
    assert "only time that the key is shown" in made.text
    kept = first.http.cookies[SESSION]
    assert (await second.post("/logout")).status_code == 303
    again = await first.get("/tenants/acme", headers={"cookie": f"{SESSION}={kept}"})
    assert again.headers["location"].startswith("/login"), "whoever kept the cookie has nothing"


async def test_what_is_ended_at_one_is_refused_at_the_other(two: Two) -> None:
    (anna, _), (olga, elsewhere) = two.tabs(), two.tabs()
    assert (await anna.log_in("anna@acme", PASSWORD)).status_code == 303
    assert (await olga.log_in("olga@acme", PASSWORD)).status_code == 303
    assert (await elsewhere.get("/tenants/acme/adapters")).status_code == 200
    page = (await anna.get("/tenants/acme/users")).text
    row = page[page.index('<th scope="row">olga</th>') :]
    action = row[row.index('action="') + 8 :].split('"', 1)[0]
    assert action.endswith("/end")
    assert (await anna.post(action)).status_code == 303
    gone = await elsewhere.get("/tenants/acme/adapters")
    assert gone.status_code == 303
    assert gone.headers["location"].startswith("/login")
    told = await elsewhere.script("/tenants/acme/playground/stream", {"side": "a"})
    assert told.json()["error"]["reason"] == "SIGNED_OUT"
    assert (await anna.get("/tenants/acme/adapters")).status_code == 200


async def test_a_form_is_kept_from_one_to_the_other(two: Two) -> None:
    first, second = two.tabs()
    await first.log_in("anna@acme", PASSWORD)
    await first.get("/tenants/acme/keys")
    sessions = [one async for one in two.here.admin.list_sessions("acme")]
    for one in sessions:
        await two.here.admin.end_session(one.name)
    fields = {"principal": "billing", "role": "member", "days": "7"}
    refused = await first.post("/tenants/acme/keys", fields)
    assert refused.status_code == 401
    kept = {"username": "anna@acme", "password": PASSWORD, "kept": field(refused.text, "kept")}
    second.csrf = first.csrf
    page = (await second.post("/login", kept)).text
    assert {name: field(page, name) for name in fields} == fields
    first.csrf = second.csrf
    sent = await first.post("/tenants/acme/keys", fields)
    assert "only time that the key is shown" in sent.text


async def test_guesses_at_both_are_counted_together(two: Two) -> None:
    tabs = two.tabs()
    statuses = []
    for number in range(12):
        answer = await tabs[number % 2].log_in("anna@acme", f"wrong password {number}")
        statuses.append(answer.status_code)
        if answer.status_code == 429:
            break
    assert statuses == [401] * (len(statuses) - 1) + [429]
    assert len(statuses) <= 11
    for tab in two.tabs():
        locked = await tab.log_in("anna@acme", PASSWORD)
        assert locked.status_code == 429, "the right one too, at either"
        assert "Too much at once" in locked.text or "too many attempts" in locked.text

"""What holds for every page: headers, cookies, tokens of forms, other tenants, sizes."""

from __future__ import annotations

import logging
import re

import pytest

from lorry_admin.web.guard import HEADERS, POLICY
from lorry_admin.web.memory_accounts import ABSOLUTE_S, IDLE_S, LOCK_AFTER, LOCK_S
from tests.integration.web.test_pages import OPERATOR_PAGES
from tests.integration.web.world import PASSWORD, World, world

ISSUE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


async def test_headers_are_on_every_answer(here: World) -> None:
    assert POLICY == ISSUE_POLICY
    anna, stranger = await here.logged_in("anna"), here.browser()
    page = await anna.get("/tenants/acme")
    static = re.search(r'href="(/static/[^"]+\.css)"', page.text)
    assert static is not None
    answers = [
        page,
        await stranger.get("/login"),
        await stranger.get("/tenants/acme"),
        await anna.get("/nothing"),
        await anna.get(static[1]),
        await anna.get("/session"),
        await anna.post("/tenants/acme/keys", {"csrf": "forged"}),
        await stranger.http.post("/login", headers={"sec-fetch-site": "cross-site"}),
        await anna.script("/tenants/acme/playground/stream", {"side": "a", "model_a": "models/tiny", "prompt": "x"}),
        await anna.http.post("/login", content=b"", headers={"content-length": "999999999"}),
    ]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (answer.request.url, name)
        immutable = "immutable" in answer.headers["cache-control"]
        assert immutable == (answer.request.url.path == static[1])
        assert immutable or answer.headers["cache-control"] == "no-store"


async def test_no_page_has_inline_script_or_style_or_foreign_address(here: World) -> None:
    await here.adapter("acme", "pirate", (0, 1))
    anna, root = await here.logged_in("anna"), await here.logged_in("root")
    pages = [
        "",
        "/adapters",
        "/adapters/pirate",
        "/adapters/pirate/versions/1",
        "/register",
        "/playground",
        "/keys",
        "/usage",
    ]
    texts = [(await anna.get(f"/tenants/acme{page}")).text for page in [*pages, "/quotas", "/requests", "/audit"]]
    texts += [(await root.get(page)).text for page in OPERATOR_PAGES]
    for text in texts:
        assert re.findall(r"<script(?![^>]* src=)[^>]*>|<style|\sstyle=|\son[a-z]+=|javascript:", text) == []
        assert re.findall(r'(?:src|href|action)="(?!/|#|\?)[^"]*', text) == []
        assert 'lang="en"' in text
        assert 'class="skip" href="#main"' in text


async def test_cookies(here: World) -> None:
    browser = here.browser()
    response = await browser.log_in("anna")
    for line in response.headers.get_list("set-cookie"):
        assert "HttpOnly" in line
        assert "samesite=strict" in line.lower()
        assert "secure" not in line.lower()
    text = browser.http.cookies["lorry_session"]
    assert text not in str(here.accounts.__dict__)


async def test_cookies_are_bound_to_the_host_where_browsers_come_by_tls(tmp_path: object) -> None:
    async with world(tmp_path, public_url="https://lorry.test") as here:  # type: ignore[arg-type]  # a Path
        await here.tenant("acme")
        await here.user("anna", "acme", "owner")
        browser = here.browser()
        browser.http.base_url = "https://lorry.test"
        browser.http.headers["origin"] = "https://lorry.test"
        response = await browser.log_in("anna")
        assert response.status_code == 303
        assert all(
            line.startswith("__Host-") and "; secure" in line.lower()
            for line in response.headers.get_list("set-cookie")
        )
        assert "strict-transport-security" in response.headers
        browser.http.headers["origin"] = "http://lorry.test"
        assert (await browser.post("/logout")).status_code == 403


FORGED = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "http://evil.test"},
    {"origin": "null"},
]


@pytest.mark.parametrize("headers", FORGED)
async def test_forms_of_other_sites_do_nothing(here: World, headers: dict[str, str]) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/keys")
    fields = {"principal": "evil", "role": "owner"}
    response = await anna.post("/tenants/acme/keys", fields, headers=headers)
    assert response.status_code == 403
    assert "evil" not in response.text
    assert "evil" not in [key.principal async for key in here.admin.list_keys("acme")]


@pytest.mark.parametrize("token", ["", "forged", "ü"])
async def test_a_form_with_another_token_does_nothing_and_is_not_lost(here: World, token: str) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/keys")
    fields = {"principal": "evil", "role": "owner", "csrf": token}
    response = await anna.post("/tenants/acme/keys", fields)
    assert response.status_code == 403
    assert 'value="evil"' in response.text, "its sender may send it again, with the token of the present login"
    unvouched = await anna.http.post("/tenants/acme/keys", data=fields, headers={"sec-fetch-site": "", "origin": ""})
    assert unvouched.status_code == 403
    del anna.http.headers["sec-fetch-site"], anna.http.headers["origin"]
    nobody = await anna.http.post("/tenants/acme/keys", data=fields)
    assert nobody.status_code == 403
    assert "evil" not in nobody.text, "nobody says where it came from"
    assert "evil" not in [key.principal async for key in here.admin.list_keys("acme")]


async def test_scripts_need_the_token_too(here: World) -> None:
    anna = await here.logged_in("anna")
    for method, path in (
        ("POST", "/tenants/acme/adapters/pirate/uploads"),
        ("PUT", f"/tenants/acme/adapters/pirate/uploads/{'0' * 32}/chunk?file=a&offset=0"),
        ("POST", "/tenants/acme/playground/stream"),
        ("POST", "/tenants/acme/playground/code"),
        ("POST", f"/tenants/acme/adapters/pirate/uploads/{'0' * 32}/create"),
        ("POST", "/tenants/acme/adapters/pirate/import"),
    ):
        response = await anna.http.request(method, path, headers={"accept": "application/json"})
        assert response.status_code == 403, path
        assert response.json()["error"]["reason"] == "PERMISSION_DENIED"


async def test_another_tenants_pages_are_not_there(here: World) -> None:
    await here.adapter("beta", "secret")
    anna = await here.logged_in("anna")
    pages = ["", "/adapters", "/adapters/secret", "/adapters/secret/versions/1", "/playground", "/keys", "/usage"]
    pages += ["/usage.csv", "/quotas", "/audit", "/register", "/adapters.json", "/adapters/secret/diff?a=1&b=1"]
    missing = await anna.get("/tenants/acme/adapters/none")
    assert missing.status_code == 404
    for tenant in ("beta", "nobody", "-x-", "platform", "BETA", "%2e%2e"):
        for page in pages:
            response = await anna.get(f"/tenants/{tenant}{page}")
            assert response.status_code == 404, (tenant, page)
            assert response.text == missing.text
    for path in ("/nothing", "/operator/tenants", "/operator/tenants/beta", "/operator/nothing", "/static/x/none.css"):
        assert (await anna.get(path)).text == missing.text, path
    for action in ("keys", "adapters/secret/delete", "adapters/secret/aliases", "audit", "quotas", "playground"):
        response = await anna.post(f"/tenants/beta/{action}", {"principal": "x", "role": "owner", "version": "1"})
        assert response.status_code == 404, action
        assert response.text == missing.text
    for action in ("tenants", "tenants/beta/suspend", "bases", "replicas/x/drain"):
        assert (await anna.post(f"/operator/{action}", {"suspended": "1"})).text == missing.text
    assert (await anna.script("/tenants/beta/adapters/secret/uploads")).status_code == 404


async def test_logging_in_is_locked_after_failures(here: World) -> None:
    browser = here.browser()
    wrong = [await browser.log_in("anna", "wrong") for _ in range(LOCK_AFTER)]
    unknown = await browser.log_in("nobody", "wrong")
    assert {one.status_code for one in [*wrong, unknown]} == {401}
    assert wrong[0].text.replace("anna", "nobody") == unknown.text
    locked = await browser.log_in("anna")
    assert locked.status_code == 429
    assert "Try again in" in locked.text
    assert PASSWORD not in locked.text
    here.clock[0] += LOCK_S + 1
    assert (await browser.log_in("anna")).status_code == 303


async def test_login_needs_its_own_page(here: World) -> None:
    """Else somebody could log a visitor in as somebody else."""
    browser = here.browser()
    fields = {"username": "anna", "password": PASSWORD, "csrf": "0" * 32}
    assert (await browser.http.post("/login", data=fields)).status_code == 403
    await browser.get("/login")
    assert (await browser.http.post("/login", data=fields)).status_code == 403
    assert (await browser.log_in("anna")).status_code == 303


@pytest.mark.parametrize("place", ["//evil.test", "https://evil.test", "/\\evil.test", "javascript:alert(1)", "/a b"])
async def test_the_way_back_is_here(here: World, place: str) -> None:
    response = await here.browser().log_in("anna", next=place)
    assert response.headers["location"] == "/"


async def test_sessions_end(here: World) -> None:
    anna, other = await here.logged_in("anna"), await here.logged_in("anna")
    assert (await other.post("/logout")).headers["location"] == "/login"
    assert (await other.get("/tenants/acme/keys")).headers["location"] == "/login?next=%2Ftenants%2Facme%2Fkeys"
    here.clock[0] += IDLE_S - 60
    assert (await anna.get("/tenants/acme/keys")).status_code == 200
    here.clock[0] += IDLE_S + 60
    assert (await anna.get("/tenants/acme/keys")).status_code == 303
    third = await here.logged_in("anna")
    for _ in range(int(ABSOLUTE_S / IDLE_S) * 2):
        here.clock[0] += IDLE_S / 2 + 1
        last = await third.get("/session")
    assert last.status_code == 303
    fourth = await here.logged_in("anna")
    here.accounts.disable("anna")
    assert (await fourth.get("/tenants/acme")).status_code == 303


async def test_bodies_are_bounded(here: World) -> None:
    anna = await here.logged_in("anna")
    fields = {"principal": "x" * (600 << 10), "role": "member"}
    assert (await anna.post("/tenants/acme/keys", fields)).status_code == 400
    big = b"x" * ((1 << 20) + 2000)
    path = f"/tenants/acme/adapters/pirate/uploads/{'0' * 32}/chunk?file=a&offset=0"
    assert (await anna.script(path, method="PUT", content=big)).status_code == 400

    async def drip() -> object:
        for _ in range(40):
            yield b"x" * (64 << 10)

    assert (await anna.script(path, method="PUT", content=drip())).status_code == 400


async def test_an_error_that_nobody_foresaw_tells_nothing(
    here: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    anna = await here.logged_in("anna")

    def broken(*args: object) -> str:
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(here.accounts, "token", broken)
    with caplog.at_level(logging.ERROR):
        response = await anna.get("/tenants/acme/adapters")
    assert response.status_code == 502
    assert "secret of the inside" not in response.text
    assert "Traceback" not in response.text
    found = re.search(r"under the id ([0-9a-f]{32})", response.text)
    assert found is not None
    assert found[1] in caplog.text
    assert "secret of the inside" in caplog.text

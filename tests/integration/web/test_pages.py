"""Every page as each role."""

from __future__ import annotations

import re
from html import unescape

from tests.integration.web.world import World

READ_PAGES = (
    "",
    "/adapters",
    "/usage",
    "/usage.csv",
    "/quotas",
    "/prices",
    "/requests",
    "/audit",
    "/adapters/pirate",
)
TENANT_PAGES = (*READ_PAGES, "/register", "/keys", "/users")
OPERATOR_PAGES = (
    "/operator/tenants",
    "/operator/tenants/acme",
    "/operator/replicas",
    "/operator/bases",
    "/operator/memory",
    "/operator/queue",
    "/operator/requests",
)


async def test_owner_sees_every_page_of_its_tenant(here: World) -> None:
    name = await here.adapter("acme", "pirate", (0, 1))
    await here.admin.set_alias(name, "prod", 1)
    await here.admin.set_canary(f"{name}@prod", 2, 100)
    anna = await here.logged_in("anna")
    of_adapter = ("", "/versions/1", "/diff?a=1&b=2", "/aliases/prod")
    for page in [*TENANT_PAGES, "/playground", *(f"/adapters/pirate{one}" for one in of_adapter)]:
        response = await anna.get(f"/tenants/acme{page}")
        assert response.status_code == 200, (page, response.text)
    for period in ("1h", "6h", "24h", "7d", "30d"):
        assert (await anna.get(f"/tenants/acme?period={period}")).status_code == 200
    for page in OPERATOR_PAGES:
        assert (await anna.get(page)).status_code == 404, page


async def test_member_generates_and_reads_nothing_else(here: World) -> None:
    mark = await here.logged_in("mark")
    assert (await mark.get("/")).headers["location"] == "/tenants/acme/playground"
    assert (await mark.get("/tenants/acme/playground")).status_code == 200
    for page in ("", "/adapters", "/keys", "/usage", "/quotas", "/audit"):
        response = await mark.get(f"/tenants/acme{page}")
        assert response.status_code == 403, page
        assert "ROLE_TOO_LOW" in response.text


async def test_viewer_reads_and_changes_nothing(here: World) -> None:
    name = await here.adapter("acme", "pirate", (0, 1))
    vera = await here.logged_in("vera")
    for page in (*READ_PAGES, "/adapters/pirate/versions/1", "/adapters/pirate/diff?a=1&b=2"):
        response = await vera.get(f"/tenants/acme{page}")
        assert response.status_code == 200, page
        forms = response.text.count('method="post"') if "text/html" in response.headers["content-type"] else 0
        assert forms <= 1 + page.endswith("audit"), (
            "to log out, and to check the chain: no button that would be refused"
        )
    for page in ("/keys", "/users"):
        assert (await vera.get(f"/tenants/acme{page}")).status_code == 403, page
    for action in (
        "adapters/pirate/delete",
        "adapters/pirate/versions/1/quarantine",
        "adapters/pirate/pin",
        "adapters/pirate/aliases",
        "keys",
        "users",
        "quotas",
        "prices",
    ):
        fields = {"version": "1", "alias": "x", "reason": "y", "principal": "p", "role": "member", "user": "u"}
        fields |= {"requests_per_minute": "1", "currency": "EUR", "prompt": "1", "output": "1"}
        response = await vera.post(f"/tenants/acme/{action}", fields)
        assert response.status_code == 403, action
        assert "ROLE_TOO_LOW" in response.text
    fields = {"side": "a", "model_a": name, "prompt": "x"}
    assert "ROLE_TOO_LOW" in (await vera.script("/tenants/acme/playground/stream", fields)).text


async def test_operator_manages_adapters_and_no_keys(here: World) -> None:
    await here.adapter("acme", "pirate", (0, 1))
    olga = await here.logged_in("olga")
    for page in (*READ_PAGES, "/register", "/playground", "/users"):
        assert (await olga.get(f"/tenants/acme{page}")).status_code == 200, page
    assert (await olga.get("/tenants/acme/keys")).status_code == 403
    done = await olga.post("/tenants/acme/adapters/pirate/aliases", {"alias": "prod", "version": "1"})
    assert done.status_code == 303


async def test_administrator_sees_all(here: World) -> None:
    await here.adapter("acme", "pirate")
    root = await here.logged_in("root")
    assert (await root.get("/")).headers["location"] == "/operator/tenants"
    for page in OPERATOR_PAGES:
        assert (await root.get(page)).status_code == 200, page
    assert (await root.get("/operator/bases/tiny")).status_code == 200
    for page in TENANT_PAGES:
        assert (await root.get(f"/tenants/acme{page}")).status_code == 200, page
    assert (await root.get("/tenants/acme/playground")).status_code == 404


async def test_a_list_needs_no_script(here: World) -> None:
    name = await here.adapter("acme", "a-pirate")
    for alias in ("prod", "b1", "b2", "b3", "b4", "b5"):
        await here.admin.set_alias(name, alias, 1)
    for number in range(30):
        await here.admin.create_adapter("acme", f"n{number:02}")
    anna = await here.logged_in("anna")
    page = (await anna.get("/tenants/acme/adapters")).text
    assert page.count("data-name=") == 25
    row = page[page.index(f'data-name="{name}"') : page.index('data-name="tenants/acme/adapters/n00"')]
    for word in (">ready<", "@b1 → 1", "and 2 more", ">tiny<", ">never<", ">object store<"):
        assert word in row, word
    assert page.count("no version") == 24
    following = re.search(r'href="([^"]+)" rel="next"', page)
    assert following is not None
    rest = (await anna.get(unescape(following[1]))).text
    assert rest.count("data-name=") == 6
    assert "This is the last page." in rest

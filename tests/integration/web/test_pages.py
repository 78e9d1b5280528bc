"""Every page as each role."""

from __future__ import annotations

from tests.integration.web.world import World

TENANT_PAGES = ("", "/adapters", "/adapters.json", "/register", "/keys", "/usage", "/usage.csv", "/quotas", "/audit")
OPERATOR_PAGES = ("/operator/tenants", "/operator/tenants/acme", "/operator/replicas", "/operator/bases")


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


async def test_administrator_sees_all(here: World) -> None:
    root = await here.logged_in("root")
    assert (await root.get("/")).headers["location"] == "/operator/tenants"
    for page in OPERATOR_PAGES:
        assert (await root.get(page)).status_code == 200, page
    assert (await root.get("/operator/bases/tiny")).status_code == 200
    for page in TENANT_PAGES:
        assert (await root.get(f"/tenants/acme{page}")).status_code == 200, page
    assert (await root.get("/tenants/acme/playground")).status_code == 404

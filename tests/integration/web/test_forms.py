"""Every form does what it says, and says what it did."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest

from lorry.client.admin import AdminClient
from lorry.errors import Unauthenticated
from tests.integration.web.world import BASE_CONFIG, PASSWORD, Browser, World

AT = "/tenants/acme/adapters/pirate"
PIRATE = "tenants/acme/adapters/pirate"


async def done(browser: Browser, path: str, said: str, **fields: Any) -> str:
    """The page that the redirect leads to."""
    response = await browser.post(path, fields)
    assert response.status_code == 303, response.text
    page = await browser.get(response.headers["location"])
    assert page.status_code == 200
    assert said in page.text
    assert said not in (await browser.get(response.headers["location"])).text, "once"
    return page.text


def etag(page: str, action: str) -> str:
    found = re.search(rf'action="{re.escape(action)}".*?name="etag" value="([^"]*)"', page, re.S)
    assert found is not None
    return unescape(found[1])


async def test_aliases_and_canaries(here: World) -> None:
    await here.adapter("acme", "pirate", (0, 1))
    anna = await here.logged_in("anna")
    page = await done(anna, f"{AT}/aliases", "Alias set.", alias="prod", version=1)
    assert "@prod" in page
    old = etag(page, f"{AT}/aliases/prod/canary")
    page = await done(anna, f"{AT}/aliases/prod/canary", "Canary set.", version=2, permille=125, etag=old)
    assert "version 2 gets 12.5%" in page
    stale = await anna.post(f"{AT}/aliases/prod/promote", {"etag": old})
    assert stale.status_code == 409
    assert "STALE_ETAG" in stale.text
    new = etag(page, f"{AT}/aliases/prod/promote")
    page = await done(anna, f"{AT}/aliases/prod/promote", "Canary promoted.", etag=new)
    assert (await here.admin.get_alias(f"{PIRATE}@prod")).version == 2
    await done(anna, f"{AT}/aliases/prod/rollback", "Rolled back.")
    assert (await here.admin.get_alias(f"{PIRATE}@prod")).version == 1
    await done(anna, f"{AT}/aliases/prod/canary", "Canary set.", version=2, percent="50")
    await done(anna, f"{AT}/aliases/prod/rollback", "Rolled back.")
    assert (await here.admin.get_alias(f"{PIRATE}@prod")).canary_version == 0
    page = (await anna.get(AT)).text
    ended = re.findall(r"<td class=\"num\">([^<]*)</td><td><span class=\"state plain\">([^<]*)<", page)
    assert ended == [("50.0%", "rolled back"), ("12.5%", "promoted")]
    past = (await anna.get(f"{AT}/aliases/prod")).text
    assert past.count("<tr>") == 7
    await done(anna, f"{AT}/aliases/prod/delete", "Alias deleted.")


async def test_pins_names_and_ends(here: World) -> None:
    await here.adapter("acme", "pirate", (0, 1))
    anna = await here.logged_in("anna")
    assert "version 1, hard" in await done(anna, f"{AT}/pin", "Pin set.", version=1, mode="hard")
    assert "version 2, default" in await done(anna, f"{AT}/pin", "Pin set.", version=2, mode="default")
    await done(anna, f"{AT}/unpin", "Pin cleared.")
    page = await done(anna, f"{AT}/rename", "Display name changed.", display_name="Arr")
    assert "<h1>Arr</h1>" in page
    await done(anna, f"{AT}/versions/1/deprecate", "Version deprecated.", reason="old")
    await done(anna, f"{AT}/versions/2/preload", "Version loaded.")
    await done(anna, f"{AT}/versions/2/evict", "Version taken out")
    await done(anna, f"{AT}/versions/2/quarantine", "Version quarantined.", reason="bad words")
    assert "bad words" in (await anna.get(f"{AT}/versions/2")).text
    page = await done(anna, f"{AT}/delete", "Adapter deleted.")
    assert "Purged from" in page
    assert "pirate" in (await anna.get("/tenants/acme/adapters?deleted=1")).text
    assert "pirate" not in (await anna.get("/tenants/acme/adapters")).text
    await done(anna, f"{AT}/undelete", "The deletion was taken back.")


async def test_a_key_is_shown_once_and_refused_when_it_is_revoked(here: World) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/keys")
    page = await anna.post("/tenants/acme/keys", {"principal": "billing", "role": "owner", "days": "30"})
    found = re.search(r"lorry_[0-9a-f]{16}_[A-Za-z0-9_-]+", page.text)
    assert found is not None
    key = found[0]
    listed = (await anna.get("/tenants/acme/keys")).text
    assert key not in listed
    assert key.split("_")[1] in listed
    async with AdminClient(here.address, key) as client:
        assert (await client.get_tenant("acme")).name == "tenants/acme"
        rotated = await anna.post(f"/tenants/acme/keys/{key.split('_')[1]}/rotate", {"overlap": "3600"})
        again = re.search(r"lorry_[0-9a-f]{16}_[A-Za-z0-9_-]+", rotated.text)
        assert again is not None
        assert again[0] != key
        await done(anna, f"/tenants/acme/keys/{key.split('_')[1]}/revoke", "Key revoked.")
        with pytest.raises(Unauthenticated):
            await client.get_tenant("acme")
    for days in ("0", "4000", "x"):
        bad = await anna.post("/tenants/acme/keys", {"principal": "p", "role": "member", "days": days})
        assert bad.status_code == 400
        assert "days" in bad.text


async def test_quotas_prices_and_audit(here: World) -> None:
    root, anna = await here.logged_in("root"), await here.logged_in("anna")
    assert "No limits are set" in (await anna.get("/tenants/acme/quotas")).text
    await root.get("/tenants/acme/quotas")
    page = await done(
        root, "/tenants/acme/quotas", "Quota set.", tokens_per_month="1,000,000", requests_per_minute="60", adapter=""
    )
    assert "of 1,000,000 tokens used" in page
    refused = await anna.post("/tenants/acme/quotas", {"tokens_per_month": "9"})
    assert refused.status_code == 403
    quota = re.search(r"/tenants/acme/quotas/(qu_[0-9a-f]+)/delete", page)
    assert quota is not None
    await done(root, f"/tenants/acme/quotas/{quota[1]}/delete", "Quota deleted.")
    price = {"currency": "eur", "prompt": "0.15", "output": "0.60", "day": "2026-01-01"}
    await done(root, "/tenants/acme/prices", "Price set.", **price)
    assert "0.6" in (await anna.get("/tenants/acme/prices")).text
    audit = (await anna.get("/tenants/acme/audit")).text
    assert "quota.delete" in audit
    checked = await anna.post("/tenants/acme/audit", {})
    assert "intact" in checked.text
    head = re.search(r"Newest hash: <code[^>]*>([0-9a-f]{64})", checked.text)
    assert head is not None
    other = await anna.post("/tenants/acme/audit", {"known_hash": "0" * 64, "known_sequence": "1"})
    assert "broken" in other.text


async def test_users_and_sessions(here: World) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/users")
    made = await anna.post("/tenants/acme/users", {"user": "nora", "role": "viewer"})
    assert made.status_code == 200
    assert "nora@acme" in made.text
    page = await done(anna, "/tenants/acme/users/nora/role", "User changed.", role="operator")
    assert "nora@acme" in page
    await done(anna, "/tenants/acme/users/nora/disable", "User changed.", disabled="1")
    assert "New password" in (await anna.get("/tenants/acme/users")).text
    again = await anna.post("/tenants/acme/users/nora/password", {})
    assert "Password of nora@acme" in again.text


async def test_ones_own_password(here: World) -> None:
    anna, other = await here.logged_in("anna"), await here.logged_in("anna")
    await anna.get("/account")
    for fields in (
        {"password": "wrong", "new_password": "a new password", "again": "a new password"},
        {"password": PASSWORD, "new_password": "a new password", "again": "another one!"},
        {"password": PASSWORD, "new_password": "short", "again": "short"},
    ):
        response = await anna.post("/account/password", fields)
        assert response.status_code in (400, 401)
        assert 'role="alert"' in response.text
        assert not any(value in response.text for value in fields.values() if value != "short")
    fields = {"password": PASSWORD, "new_password": "a new password", "again": "a new password"}
    assert (await anna.post("/account/password", fields)).status_code == 303
    assert (await other.get("/account")).status_code == 303
    assert (await anna.get("/account")).status_code == 200


async def test_operator_forms(here: World) -> None:
    root = await here.logged_in("root")
    await root.get("/operator/tenants")
    await done(root, "/operator/tenants", "Tenant created.", tenant="gamma", display_name="Gamma")
    taken = await root.post("/operator/tenants", {"tenant": "gamma"})
    assert taken.status_code == 409
    await done(root, "/operator/tenants", "Tenant created.", tenant="heavy", display_name="", weight="7")
    assert 'max="100" value="7"' in (await root.get("/operator/tenants/heavy")).text
    for bad in ("0", "101", "3000000000", "much"):
        refused = await root.post("/operator/tenants", {"tenant": "light", "weight": bad})
        assert refused.status_code == 400, bad
        assert "weight" in refused.text
    at = "/operator/tenants/gamma"
    page = await done(
        root, at, "Tenant changed.", display_name="Gamma 2", import_prefixes="s3://bucket/b/\ns3://bucket/d/"
    )
    assert "s3://bucket/d/" in page
    read = etag(page, at)
    page = await done(root, at, "Tenant changed.", display_name="Gamma 2", weight="25", etag=read)
    assert 'name="weight" type="number" min="1" max="100" value="25"' in page
    assert '<td class="num">25</td>' in (await root.get("/operator/tenants")).text
    for bad, status in (("0", 400), ("101", 400), ("3000000000", 400), ("much", 400), ("30", 409)):
        refused = await root.post(at, {"display_name": "Gamma 3", "weight": bad, "etag": read})
        assert refused.status_code == status, bad
    assert 'value="25"' in (await root.get(at)).text
    page = await done(root, f"{at}/grants", "Grant given.", resource="models/tiny")
    grant = re.search(r"grants/(gr_[0-9a-f]+)/revoke", page)
    assert grant is not None
    await done(root, f"{at}/grants/{grant[1]}/revoke", "Grant revoked.")
    assert "suspended" in await done(root, f"{at}/suspend", "Tenant changed.", suspended="1")
    await done(root, f"{at}/suspend", "Tenant changed.", suspended="0")
    fields = {
        "name": "other",
        "base_sha256": "3" * 64,
        "tokenizer_sha256": "4" * 64,
        "config_json": json.dumps(BASE_CONFIG),
    }
    assert "4" * 64 in await done(root, "/operator/bases", "Base model registered.", **fields)


async def test_what_is_refused_comes_back_filled_in(here: World) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/keys")
    response = await anna.post("/tenants/acme/keys", {"principal": "Not A Name", "role": "member"})
    assert response.status_code == 400
    assert 'value="Not A Name"' in response.text
    assert "use 1 to 63" in response.text
    assert 'action="/tenants/acme/keys"' in response.text

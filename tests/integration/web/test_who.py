"""Pages name people and keys, not ids alone, say of a gateway that was killed that nobody hears of it, and lead back
from an error to where one was."""

from __future__ import annotations

import re

from lorry.registry.fleet.service import Doing, ReplicaKind, Sighting
from lorry_admin.web.pages.operator import SILENT_S
from lorry_admin.web.rendering import ticked
from tests.integration.web.filled import used
from tests.integration.web.world import ORIGIN, World


async def test_audit_names_who_did_it(here: World) -> None:
    """Anna's own key made a key; an administrator's made the tenant."""
    login = await here.user("ella", "acme", "owner")
    async with here.client(login) as admin:
        await admin.create_key("acme", "billing", "member")
    ella = await here.logged_in("ella")
    page = (await ella.get("/tenants/acme/audit")).text
    rows = {action: row for row in page.split("<tr>") for action in re.findall(r"<code>(\w+\.\w+)</code>", row)[:1]}
    assert "an administrator" in rows["tenant.create"]
    assert "p-owner, by key" in page
    viewer = await here.logged_in("vera")
    assert "by key" not in (await viewer.get("/tenants/acme/audit")).text, "a viewer may not see keys"


async def test_a_replica_that_stopped_talking_is_silent(here: World) -> None:
    await here.registry.fleet.report(Sighting("gateway-a-1", ReplicaKind.GATEWAY, Doing.SERVING, "127.0.0.1:1"))
    root = await here.logged_in("root")
    before = (await root.get("/operator/replicas")).text
    assert "serving" in before
    assert "/operator/replicas/gateway-a-1/drain" in before
    here.clock[0] = SILENT_S + 5
    after = (await root.get("/operator/replicas")).text
    assert re.search(r'class="state bad">silent<', after)
    assert "/operator/replicas/gateway-a-1/drain" not in after, "it would not hear of it"


async def test_usage_names_keys_to_who_may_see_them(here: World) -> None:
    key = await here.admin.create_key("acme", "billing", "member")
    await used(here, "acme", key.api_key.name.rsplit("/", 1)[-1], ["pirate"], 20)
    anna, vera = await here.logged_in("anna"), await here.logged_in("vera")
    assert "billing, by key" in (await anna.get("/tenants/acme/usage?by=key")).text
    assert "billing" not in (await vera.get("/tenants/acme/usage?by=key")).text


async def test_one_limit_is_changed_and_the_others_stay(here: World) -> None:
    root = await here.logged_in("root")
    await here.admin.set_quota("acme", tokens_per_month=5000, concurrency=7)
    page = (await root.get("/tenants/acme/quotas")).text
    form = page.split("<details>")[1].split("</form>")[0]
    fields = dict(re.findall(r'name="(\w+)"[^>]*? value="([^"]*)"', form))
    assert (fields["tokens_per_month"], fields["concurrency"], fields["queue_length"]) == ("5000", "7", "")
    assert (await root.post("/tenants/acme/quotas", fields | {"concurrency": "9"})).status_code == 303
    (quota,) = [one async for one in here.admin.list_quotas("acme")]
    assert (quota.limits.tokens_per_month, quota.limits.concurrency) == (5000, 9)
    late = await root.post("/tenants/acme/quotas", fields)
    assert late.status_code == 409, "somebody was first"


async def test_an_error_leads_back(here: World) -> None:
    """Where nothing was typed that could be sent again; and to no other site."""
    await here.adapter("acme", "pirate")
    await here.admin.set_alias("tenants/acme/adapters/pirate", "prod", 1)
    anna = await here.logged_in("anna")
    page = (await anna.get("/tenants/acme/adapters/pirate")).text
    assert "Roll back" not in page, "there is nothing before the first revision"
    at = "/tenants/acme/adapters/pirate/aliases/prod/rollback"
    place = "/tenants/acme/adapters/pirate?page=x"
    for referer, back in ((f"{ORIGIN}{place}", True), (f"https://elsewhere.test{place}", False), ("", False)):
        answer = await anna.post(at, headers={"referer": referer} if referer else {})
        assert answer.status_code == 409
        assert (f'href="{place}"' in answer.text) is back, referer
        assert "elsewhere.test" not in answer.text


def test_words_between_backticks_are_code() -> None:
    assert ticked("send `a@b` <i>") == "send <code>a@b</code> &lt;i&gt;"
    assert ticked("one ` alone <script>") == "one ` alone &lt;script&gt;"
    assert ticked("`<img src=x>`") == "<code>&lt;img src=x&gt;</code>"

"""Pages name people and keys, not ids alone; and say of a gateway that was killed that nobody hears of it."""

from __future__ import annotations

import re

from lorry.registry.fleet.service import Doing, ReplicaKind, Sighting
from lorry_admin.web.pages.operator import SILENT_S
from tests.integration.web.world import World


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

"""Who may not is counted at the admin services, by service and reason, as operators' metrics tell."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from lorry.client.admin import AdminClient
from lorry.errors import LorryError, RoleTooLow, TenantSuspended, Unauthenticated
from lorry.gateway.metrics import MetricPages, Target
from tests.integration.web.world import World


async def test_refusals_are_counted_by_service_and_reason(here: World) -> None:
    assert here.gateway is not None
    pages = MetricPages(here.gateway.watched, [Target("engine-0", here.engine)])

    async def counted() -> dict[tuple[str, str], int]:
        text = (await pages.metrics("text/plain"))[0]
        found = [one for family in families(text.decode()) for one in family.samples]
        return {
            (one.labels["service"], one.labels["reason"]): int(one.value)
            for one in found
            if one.name == "lorry_admin_auth_failures_total" and one.value
        }

    async def refused(key: str, error: type[LorryError], act: Any) -> None:
        async with AdminClient(here.address, key) as client:
            with pytest.raises(error):
                await act(client)

    async def whole(pages: Any) -> None:
        async for _ in pages:
            pass

    async def rows(client: AdminClient) -> None:
        now = datetime.now(UTC)
        await whole(client.export_usage("acme", now - timedelta(days=1), now))

    assert await counted() == {}
    member = (await here.admin.create_key("acme", "m", "member")).text
    await refused("lorry_nobody", Unauthenticated, lambda one: one.get_tenant("acme"))
    await refused("lorry_nobody", Unauthenticated, lambda one: whole(one.list_adapters("acme")))
    await refused("lorry_nobody", Unauthenticated, rows)
    await refused(member, RoleTooLow, lambda one: whole(one.list_users("acme")))
    vera = await here.logged_in("vera")
    assert (await vera.get("/tenants/acme/keys")).status_code == 403
    await here.admin.update_tenant("acme", suspended=True)
    await refused(member, TenantSuspended, lambda one: one.get_tenant("acme"))
    assert await counted() == {
        ("TenantAdminService", "UNAUTHENTICATED"): 2,
        ("AdapterAdminService", "UNAUTHENTICATED"): 1,
        ("UserAdminService", "ROLE_TOO_LOW"): 1,
        ("TenantAdminService", "ROLE_TOO_LOW"): 1,
        ("TenantAdminService", "TENANT_SUSPENDED"): 1,
    }

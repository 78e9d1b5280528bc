"""After a known load four accounts of it are one: the clients', Prometheus', the ledger's, and what the pages show."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

from prometheus_client.parser import text_string_to_metric_families as families

from lorry.client import AsyncClient
from lorry.gateway.metrics import MetricPages, Target
from tests.integration.web.world import BASE, World

HOUR = timedelta(hours=1)
ASKED = (("acme", 7, 5), ("acme", 3, 12), ("beta", 4, 2))
"""Tenant, requests, output tokens of each."""


async def test_clients_metrics_ledger_and_pages_agree(here: World) -> None:
    await here.adapter("acme", "pirate")
    keys = {one: (await here.admin.create_key(one, "app", "member")).text for one in ("acme", "beta")}
    await here.seen()
    counted: dict[str, Counter[str]] = {"acme": Counter(), "beta": Counter()}

    async def ask(tenant: str, tokens: int) -> None:
        model = "tenants/acme/adapters/pirate" if tenant == "acme" else BASE
        async with AsyncClient(here.address, keys[tenant]) as client:
            usage = (await client.generate(model, "why is the sky blue", max_tokens=tokens)).usage
        counted[tenant].update(requests=1, prompt=usage.prompt_tokens, output=usage.output_tokens)

    await asyncio.gather(*(ask(tenant, tokens) for tenant, requests, tokens in ASKED for _ in range(requests)))
    await here.settled()
    assert counted["acme"]["requests"] == 10
    assert counted["acme"]["output"] == 7 * 5 + 3 * 12
    everybody = counted["acme"] + counted["beta"]

    assert here.gateway is not None
    text = (await MetricPages(here.gateway.watched, [Target("engine-0", here.engine)]).metrics("text/plain"))[0]
    samples = [one for family in families(text.decode()) for one in family.samples]

    def told(name: str, **labels: str) -> int:
        return int(sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items()))

    assert told("lorry_gateway_requests_total", reason="OK") == everybody["requests"]
    for kind in ("prompt", "output"):
        assert told("lorry_gateway_tokens_total", kind=kind) == everybody[kind]

    now = datetime.now(UTC)
    for tenant, user in (("acme", "anna"), ("beta", "bert")):
        mine = counted[tenant]
        assert told("lorry_tenant_requests_total", tenant=tenant) == mine["requests"]
        (row,) = [one async for one in here.admin.query_usage(tenant, now - HOUR, now + HOUR)]
        ledger = Counter(requests=row.requests, prompt=row.prompt_tokens, output=row.output_tokens)
        assert ledger == mine
        browser = await here.logged_in(user)
        for path in ("?period=1h", "?period=30d", "/usage"):
            page = (await browser.get(f"/tenants/{tenant}{path}")).text
            tiles = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", page))
            shown = {"requests": "Requests", "prompt": "Prompt tokens", "output": "Output tokens"}
            assert {kind: int(tiles[label].replace(",", "")) for kind, label in shown.items()} == mine, path

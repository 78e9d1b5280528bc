"""After a known load four accounts of it are one: the clients', Prometheus', the ledger's, and what the pages show."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as families

from lorry.client import AsyncClient, Retry
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import LorryError, QueueTimeout
from lorry.gateway.metrics import MetricPages, Target
from tests.integration.web.world import BASE, World
from tests.support.waiting import end, until

HOUR = timedelta(hours=1)
ASKED = (("acme", 7, 5), ("acme", 3, 12), ("beta", 4, 2))
"""Tenant, requests, output tokens of each."""


async def test_failures_of_clients_are_those_of_the_pages(here: World) -> None:
    """Whether they had a token or not: each in the figures of its tenant once, under its reason."""
    assert here.gateway is not None
    pirate = await here.adapter("acme", "pirate")
    keys = {one: (await here.admin.create_key(one, "app", "member")).text for one in ("acme", "beta")}
    await here.seen()
    met: dict[str, Counter[str]] = {"acme": Counter(), "beta": Counter()}
    once = Retry(max_retries=0)

    async def ask(tenant: str, model: str, **options: Any) -> None:
        async with AsyncClient(here.address, keys[tenant], retry=once) as client:
            try:
                await client.generate(model, "why is the sky blue", max_tokens=6, **options)
                met[tenant]["OK"] += 1
            except LorryError as error:
                met[tenant][error.reason] += 1

    async def leave(tenant: str, model: str) -> None:
        asked = len(here.engine.seen)
        async with AsyncClient(here.address, keys[tenant], retry=once) as client:
            waits = asyncio.create_task(client.generate(model, "why is the sky blue"))
            await until(lambda: len(here.engine.seen) > asked)
            await end(waits)
        met[tenant]["CANCELLED"] += 1

    for _ in range(6):
        await ask("acme", pirate)
    await ask("beta", BASE)
    await ask("acme", "tenants/acme/adapters/none")
    await ask("beta", "tenants/acme/adapters/pirate")
    here.engine.fault = lambda request: Fault(FaultKind.FAIL, 0, QueueTimeout("late"))
    for _ in range(3):
        await ask("acme", pirate)
    here.engine.fault = lambda request: Fault(FaultKind.HANG, 1)
    await leave("acme", pirate)
    await leave("beta", BASE)
    here.engine.fault = lambda request: Fault(FaultKind.DIE, 0)
    await ask("acme", pirate)
    here.engine.revive()
    here.engine.fault = lambda request: None
    await here.admin.set_quota("acme", requests_per_minute=1)
    await here.seen()
    for _ in range(4):
        await ask("acme", pirate)
    await until(lambda: len(here.gateway.live) == 0)  # type: ignore[union-attr]  # it is there
    await here.settled()
    assert met["acme"]["QUOTA_EXCEEDED"] >= 3
    assert met["acme"] == {
        "OK": met["acme"]["OK"], "MODEL_NOT_FOUND": 1, "QUEUE_TIMEOUT": 3, "CANCELLED": 1, "ENGINE_UNAVAILABLE": 1,
        "QUOTA_EXCEEDED": met["acme"]["QUOTA_EXCEEDED"],
    }  # fmt: skip
    assert met["beta"] == {"OK": 1, "MODEL_NOT_FOUND": 1, "CANCELLED": 1}

    now = datetime.now(UTC)
    for tenant, user in (("acme", "anna"), ("beta", "bert")):
        mine, requests = met[tenant], met[tenant].total()
        failed = requests - mine["OK"] - mine["CANCELLED"]
        (answer,) = [one async for one in here.admin.query_usage_pages(tenant, now - HOUR, now + HOUR)]
        told = Counter({one.reason: one.requests for one in answer.unbilled})
        assert told + Counter(OK=sum(one.requests for one in answer.sums)) == mine
        browser = await here.logged_in(user)
        for period in ("1h", "6h", "24h", "7d", "30d"):
            page = (await browser.get(f"/tenants/{tenant}?period={period}")).text
            tiles = dict(re.findall(r"<dt>([^<]+)</dt><dd>[^<]+</dd>(?:<dd class=\"sub\">(\d+)</dd>)?", page))
            assert (tiles["Succeeded"], tiles["Failed"], tiles["Aborted"]) == (
                str(mine["OK"]), str(failed), str(mine["CANCELLED"]),
            ), period  # fmt: skip
            assert f"<dt>Requests</dt><dd>{requests}</dd>" in page
            rows = re.findall(r'<code>(\w+)</code></th><td class="num">(\d+)</td><td class="num">([\d.]+) ?%', page)
            assert {reason: int(count) for reason, count, _ in rows} == mine - Counter(OK=mine["OK"]), period
            for _, count, percent in rows:
                assert abs(float(percent) - 100 * int(count) / requests) < 0.1
            assert f"{requests - mine['OK']} of all requests gave no token" in page
            assert ("by the hour: here since" in page) == (period == "1h")
            numbers = page.partition("Numbers of Requests")[2].partition("</table>")[0]
            cells = [int(cell) for cell in re.findall(r'<td class="num">(\d+)</td>', numbers)]
            bars = [sum(cells[at::3]) for at in range(3)]
            shown = [mine["OK"], mine["CANCELLED"], failed]
            assert bars == ([mine["OK"], 0, 0] if period == "1h" else shown), period


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

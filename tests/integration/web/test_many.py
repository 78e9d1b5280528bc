"""A list of 10,000 adapters, each with a version, an alias and a month of use: read page by page."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

from sqlalchemy import insert

from lorry.registry.bases import repository as bases
from lorry.registry.db import tables
from tests.integration.web.filled import verified
from tests.integration.web.world import World

ADAPTERS, PAGES, P95_S = 10_000, 30, 0.3


async def many(here: World, tenant: str) -> None:
    owner = await verified(here, tenant)
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    async with here.registry.database.write() as session:
        base = await bases.find(session, "tiny")
        assert base is not None

        async def put(table: Any, *rows: dict[str, Any]) -> None:
            await session.execute(insert(table), list(rows))

        numbers = range(ADAPTERS)
        await put(
            tables.Adapter,
            *({"id": f"ad_{i}", "tenant_id": owner, "name": f"a{i:05}", "last_version": 1} for i in numbers),
        )
        await put(
            tables.AdapterVersion,
            *(
                {
                    "id": f"av_{i}", "adapter_id": f"ad_{i}", "number": 1, "base_model_id": base.id, "state": "READY",
                    "sha256": f"{i:064x}", "prefix": "p", "rank": 8, "report": {"checks": []}, "size_bytes": 4096,
                    "created_by": "t",
                }
                for i in numbers
            ),
        )  # fmt: skip
        await put(tables.Alias, *({"adapter_id": f"ad_{i}", "name": "prod", "revision": 1} for i in numbers))
        await put(
            tables.AliasRevision,
            *(
                {"adapter_id": f"ad_{i}", "name": "prod", "revision": 1, "number": 1, "created_by": "t"}
                for i in numbers
            ),
        )
        await put(
            tables.UsageRollup,
            *(
                {
                    "tenant_id": owner, "hour": hour - timedelta(hours=24 * day), "version": 1, "key_id": "k",
                    "model": f"tenants/{tenant}/adapters/a{i:05}", "outcome": "OK", "requests": 1, "prompt_tokens": 1,
                    "cached_prompt_tokens": 0, "output_tokens": 1, "ttft": [], "inter_token": [], "duration": [],
                }
                for i in numbers for day in range(1, 1 + (2 if i < 1000 else 1))
            ),
        )  # fmt: skip


async def test_ten_thousand_adapters(here: World) -> None:
    await many(here, "acme")
    anna = await here.logged_in("anna")
    used = f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"
    url, took, seen = "/tenants/acme/adapters", [], 0
    for _ in range(PAGES):
        began = time.perf_counter()
        page = (await anna.get(url)).text
        took.append(time.perf_counter() - began)
        assert page.count("data-name=") == page.count(">ready<") == page.count("@prod → 1") == 25
        assert page.count(used) == 25, "all were used last yesterday"
        assert f"a{seen:05}" in page
        seen += 25
        following = re.search(r'href="([^"]+)" rel="next"', page)
        assert following is not None
        url = unescape(following[1])
    assert sorted(took)[int(0.95 * PAGES)] < P95_S, f"p95 of {PAGES} pages: {sorted(took)[int(0.95 * PAGES)]:.3f} s"

"""A month of a tenant's usage: for pages to have something to show."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from lorry.ids import TenantId
from lorry.registry import Usage, verify_tenant
from lorry.registry.authz import VerifiedTenantId
from tests.integration.web.world import World
from tests.unit.registry.test_authz import Proof

OUTCOMES = ("OK",) * 22 + ("CANCELLED", "CANCELLED", "QUOTA_EXCEEDED", "TTFT_TIMEOUT", "ADAPTER_COLD")


async def verified(here: World, tenant: str) -> VerifiedTenantId:
    found = await here.admin.get_tenant(tenant)
    return verify_tenant(Proof(TenantId(found.uid), "owner"), TenantId(found.uid))


async def used(here: World, tenant: str, key: str, names: list[str], count: int = 900) -> None:
    """``count`` requests, spread over 30 days, more of them lately."""
    draw, now = random.Random(7), datetime.now(UTC)
    owner = await verified(here, tenant)
    rows = []
    for i in range(count):
        ended = now - timedelta(hours=30 * 24 * draw.random() ** 3)
        outcome = draw.choice(OUTCOMES)
        output = draw.randint(20, 400) if outcome in ("OK", "CANCELLED") else 0
        prompt = draw.randint(40, 1500)
        ttft = 0.02 + draw.expovariate(12) if output else None
        decode = output * (0.008 + draw.expovariate(400)) if output else None
        took = (ttft or 0.0) + (decode or 0.0)
        rows.append(
            Usage(
                ledger_id=f"us_filled_{i}",
                tenant_id=owner,
                key_id=key,
                request_id=f"r{i}",
                adapter=f"tenants/{tenant}/adapters/{draw.choice(names)}",
                version=1,
                adapter_sha256="a" * 64,
                base_sha256="b" * 64,
                prompt_tokens=prompt,
                output_tokens=output,
                cached_prompt_tokens=prompt // 3,
                outcome=outcome,
                started_at=ended - timedelta(seconds=took),
                ended_at=ended,
                labels={"team": "a"},
                ttft_s=ttft,
                decode_s=decode,
            )
        )
    for start in range(0, count, 300):
        await here.registry.usage.write(rows[start : start + 300])


__all__ = ["used", "verified"]

"""Rows of the usage ledger for tests, and what they must add up to, computed the slow way."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select

from lorry.registry import Registry
from lorry.registry.db.tables import BaseModel, UsageEvent, UsageRollup
from lorry.registry.usage.buckets import DURATION_S, INTER_TOKEN_S, TTFT_S
from lorry.registry.usage.service import Usage

BASE = "b" * 64
NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
ADAPTER = "tenants/platform/adapters/pirate"


def usage(tenant: Any, number: int, **fields: Any) -> Usage:
    """Three tokens of a prompt, four of an answer, ended ``number`` minutes after noon unless said otherwise."""
    ended = fields.pop("ended_at", NOON + timedelta(minutes=number % 60))
    values: dict[str, Any] = {
        "ledger_id": f"us_{number:04}",
        "tenant_id": tenant,
        "key_id": "k0",
        "request_id": f"r{number}",
        "adapter": ADAPTER,
        "version": 1,
        "adapter_sha256": "a" * 64,
        "base_sha256": BASE,
        "prompt_tokens": 3,
        "output_tokens": 4,
        "cached_prompt_tokens": 2,
        "outcome": "OK",
        "started_at": ended - timedelta(seconds=0.7 + number),
        "ended_at": ended,
        "ttft_s": 0.004 * number,
        "decode_s": 0.03 * number,
    }
    return Usage(**(values | fields))


async def kept(registry: Registry) -> list[UsageEvent]:
    async with registry.database.read() as session:
        return list((await session.execute(select(UsageEvent).order_by(UsageEvent.ledger_id))).scalars())


async def check_sums(registry: Registry) -> None:
    """Every sum is that of the ledger's rows, none is missing and none is more."""
    async with registry.database.read() as session:
        bases = {row.base_sha256: f"models/{row.name}" for row in (await session.execute(select(BaseModel))).scalars()}
        rows = (await session.execute(select(UsageRollup))).scalars().all()
    wanted: dict[tuple[Any, ...], Counter[str]] = {}
    for row in await kept(registry):
        hour = row.ended_at.replace(minute=0, second=0, microsecond=0)
        model = row.adapter or bases.get(row.base_sha256, row.base_sha256)
        sums = wanted.setdefault((row.tenant_id, hour, model, row.version, row.key_id, row.outcome), Counter())
        sums["requests"] += 1
        for name in ("prompt_tokens", "cached_prompt_tokens", "output_tokens"):
            sums[name] += getattr(row, name)
        sums[_bucket("duration", DURATION_S, (row.ended_at - row.started_at).total_seconds())] += 1
        if row.ttft_s is not None:
            sums[_bucket("ttft", TTFT_S, row.ttft_s)] += 1
        if row.decode_s is not None and row.output_tokens > 1:
            sums[_bucket("inter_token", INTER_TOKEN_S, row.decode_s / (row.output_tokens - 1))] += 1
    found = {}
    for rollup in rows:
        sums = Counter({name: getattr(rollup, name) for name in _NUMBERS})
        for name, bounds in (("ttft", TTFT_S), ("inter_token", INTER_TOKEN_S), ("duration", DURATION_S)):
            counts = getattr(rollup, name)
            assert len(counts) == len(bounds) + 1
            sums.update({f"{name} {at}": count for at, count in enumerate(counts)})
        key = (rollup.tenant_id, rollup.hour, rollup.model, rollup.version, rollup.key_id, rollup.outcome)
        found[key] = sums
    assert found.keys() == wanted.keys()
    for key, sums in found.items():
        assert +sums == +wanted[key], key


_NUMBERS = ("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens")


def _bucket(name: str, bounds: tuple[float, ...], seconds: float) -> str:
    return f"{name} {sum(1 for bound in bounds if seconds > bound)}"


__all__ = ["ADAPTER", "BASE", "NOON", "check_sums", "kept", "usage"]

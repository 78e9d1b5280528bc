"""What usage costs by the tenant's prices."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date
from decimal import ROUND_HALF_UP, Decimal

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.api.v1 import user_admin_pb2 as user_pb
from lorry.client.admin.prices import list_prices
from lorry.registry.prices import DayUse, Price, cost
from lorry_admin.web.visits import Visit

PRICES_MAX = 1000


async def cost_of(visit: Visit, sums: Iterable[pb.UsageSum]) -> str:
    """As `12.34 EUR`, of sums by day or hour; "" where no price is set."""
    found, _ = await visit.whole(list_prices(visit.tenant), PRICES_MAX)
    if not found:
        return ""
    prices = [price_of(one) for one in found]
    days = [DayUse(_day(one.time), one.prompt_tokens, one.cached_prompt_tokens, one.output_tokens) for one in sums]
    return f"{money(cost(days, prices))} {prices[0].currency}"


def price_of(found: user_pb.Price) -> Price:
    day = found.effective_time.ToDatetime(tzinfo=UTC).date()
    return Price(day, found.currency, Decimal(found.prompt), Decimal(found.cached_prompt), Decimal(found.output))


def money(amount: Decimal) -> str:
    """Two decimals; six where that would say nothing of it."""
    step = Decimal("0.01") if not amount or amount >= Decimal("0.1") else Decimal("0.000001")
    return f"{amount.quantize(step, ROUND_HALF_UP):,f}"


def _day(text: str) -> date:
    return date.fromisoformat(text[:10])


__all__ = ["PRICES_MAX", "cost_of", "money", "price_of"]

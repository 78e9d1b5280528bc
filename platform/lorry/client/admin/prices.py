"""Prices, prepared. Amounts are decimals as text or ``Decimal``, for a million tokens."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from lorry.api.v1 import user_admin_pb2 as pb
from lorry.client.admin.names import tenant_name, timestamp
from lorry.client.prepared import PAGE_SIZE, USERS, Paged, Unary


def set_price(
    tenant: str,
    currency: str,
    *,
    prompt: Decimal | str,
    output: Decimal | str,
    cached_prompt: Decimal | str = "",
    effective_time: datetime | None = None,
) -> Unary[pb.Price]:
    """From a UTC day on, today unless said otherwise, in place of what was said of that day. ``cached_prompt``: of what
    came from the prefix cache; "": as ``prompt``."""
    request = pb.SetPriceRequest(
        parent=tenant_name(tenant),
        effective_time=timestamp("effective_time", effective_time),
        currency=currency,
        prompt=_text(prompt),
        cached_prompt=_text(cached_prompt),
        output=_text(output),
    )
    return USERS.unary("SetPrice", request, pb.Price)


def list_prices(tenant: str) -> Paged[pb.Price]:
    """Newest first."""
    request = pb.ListPricesRequest(parent=tenant_name(tenant), page_size=PAGE_SIZE)
    return USERS.paged("ListPrices", request, pb.ListPricesResponse, lambda page: page.prices)


def _text(amount: Decimal | str) -> str:
    return f"{amount:f}" if isinstance(amount, Decimal) else amount


__all__ = ["list_prices", "set_price"]

"""UserAdminService's methods on prices."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

import grpc.aio

from lorry.api.v1 import user_admin_pb2 as pb
from lorry.api.v1 import user_admin_pb2_grpc as pb_grpc
from lorry.errors import InvalidRequest
from lorry.registry import PageRequest, Price, Registry
from lorry.registry.names import parse_tenant
from lorry.registry.prices.costs import parse_price, price_text
from lorry.registry.prices.service import day_of
from lorry_admin.access import Access
from lorry_admin.messages import timestamp

Context = grpc.aio.ServicerContext[Any, Any]


class PricesAdmin(pb_grpc.UserAdminServiceServicer):
    """A part of ``UserAdmin``, which sets the fields."""

    _access: Access
    _registry: Registry

    async def SetPrice(self, request: pb.SetPriceRequest, context: Context) -> pb.Price:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        prompt = parse_price("prompt", request.prompt)
        cached = parse_price("cached_prompt", request.cached_prompt) if request.cached_prompt else prompt
        day = day_of("effective_time", _effective(request))
        price = Price(day, request.currency, prompt, cached, parse_price("output", request.output))
        return _price(tenant, await self._registry.prices.set(caller, tenant, price))

    async def ListPrices(self, request: pb.ListPricesRequest, context: Context) -> pb.ListPricesResponse:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        page = await self._registry.prices.list(caller, tenant, PageRequest.of(request.page_size, request.page_token))
        return pb.ListPricesResponse(
            prices=[_price(tenant, price) for price in page.rows], next_page_token=page.next_token
        )


def _effective(request: pb.SetPriceRequest) -> datetime | None:
    if not request.HasField("effective_time"):
        return None
    try:
        return request.effective_time.ToDatetime(tzinfo=UTC)
    except ValueError as error:
        raise InvalidRequest.field("effective_time", f"is not a time ({error})") from None


def _price(tenant: str, price: Price) -> pb.Price:
    return pb.Price(
        tenant=f"tenants/{tenant}",
        effective_time=timestamp(datetime.combine(price.effective_on, time(), UTC)),
        currency=price.currency,
        prompt=price_text(price.prompt),
        cached_prompt=price_text(price.cached_prompt),
        output=price_text(price.output),
    )


__all__ = ["PricesAdmin"]

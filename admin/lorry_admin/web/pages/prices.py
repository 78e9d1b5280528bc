"""What a tenant's tokens cost, by day. Setting prices is a platform administrator's."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.prices import list_prices, set_price
from lorry.errors import InvalidRequest
from lorry_admin.web.visits import Posted, Visiting

router = APIRouter()


@router.get("/tenants/{tenant}/prices")
async def prices(visit: Visiting) -> Response:
    return visit.page("prices.html", listed=await visit.listed(list_prices(visit.tenant)), now=visit.site.now())


@router.post("/tenants/{tenant}/prices")
async def put(post: Posted) -> Response:
    visit, form = post.visit, post.form
    await visit.ask(
        set_price(
            visit.tenant,
            form.text("currency").upper(),
            prompt=form.text("prompt"),
            cached_prompt=form.text("cached_prompt"),
            output=form.text("output"),
            effective_time=_day(form.text("day")),
        )
    )
    return visit.go(f"/tenants/{visit.tenant}/prices", "price-set")


def _day(text: str) -> datetime | None:
    if not text:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidRequest.field("day", f"{text[:20]!r} is not a day; give one as 2026-11-30") from None


__all__ = ["prices", "put", "router"]

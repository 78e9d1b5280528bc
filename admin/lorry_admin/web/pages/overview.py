"""A tenant's first page: what ran, how fast, and what failed."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.records import query_usage_pages
from lorry_admin.web.costs import cost_of
from lorry_admin.web.periods import PERIODS, period_of, span_of
from lorry_admin.web.summaries import place_word, residency_of
from lorry_admin.web.traffic import traffic_of
from lorry_admin.web.visits import Visiting

router = APIRouter()
PLACES_SHOWN = 20
PAGES_MAX = 5
_NEAR = ("device", "host", "disk", "object store")


@router.get("/tenants/{tenant}")
async def overview(visit: Visiting) -> Response:
    span = span_of(period_of(visit.request.query_params.get("period", "")), visit.site.now())
    call = query_usage_pages(visit.tenant, span.start, span.end, group_by=[span.period.by, "outcome"])
    pages, more = await visit.whole(call, most=PAGES_MAX)
    sums = [one for page in pages for one in page.sums]
    unbilled = [one for page in pages for one in page.unbilled]
    places = await residency_of(visit)
    return visit.page(
        "overview.html",
        places=None if places is None else sorted(places.values(), key=lambda one: _NEAR.index(place_word(one))),
        place_word=place_word,
        shown=PLACES_SHOWN,
        traffic=traffic_of(sums, unbilled, span),
        cost=await cost_of(visit, sums),
        span=span,
        whole_hours_from=span.start.replace(minute=0),
        periods=PERIODS,
        more=more,
        now=visit.site.now(),
    )


__all__ = ["PAGES_MAX", "PLACES_SHOWN", "overview", "router"]

"""A tenant's first page: what ran, how fast, and what failed."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.records import query_usage
from lorry_admin.web.costs import cost_of
from lorry_admin.web.periods import PERIODS, period_of, span_of
from lorry_admin.web.traffic import traffic_of
from lorry_admin.web.visits import Visiting

router = APIRouter()


@router.get("/tenants/{tenant}")
async def overview(visit: Visiting) -> Response:
    span = span_of(period_of(visit.request.query_params.get("period", "")), visit.site.now())
    call = query_usage(visit.tenant, span.start, span.end, group_by=[span.period.by, "outcome"])
    sums, more = await visit.whole(call)
    return visit.page(
        "overview.html",
        traffic=traffic_of(sums, span),
        cost=await cost_of(visit, sums),
        span=span,
        periods=PERIODS,
        more=more,
        now=visit.site.now(),
    )


__all__ = ["overview", "router"]

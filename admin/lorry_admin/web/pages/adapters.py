"""A tenant's adapters."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.adapters import list_adapters
from lorry_admin.web.summaries import place_in, residency_of
from lorry_admin.web.visits import Visiting

router = APIRouter()
ALIASES_SHOWN = 4


@router.get("/tenants/{tenant}/adapters")
async def adapters(visit: Visiting) -> Response:
    """Two calls, however many adapters are on the page."""
    deleted = visit.request.query_params.get("deleted") == "1"
    due = visit.listed(list_adapters(visit.tenant, show_deleted=deleted, full=True))
    listed, found = await asyncio.gather(due, residency_of(visit))
    places = {one.name: place_in(found, one.newest_version) for one in listed.rows}
    return visit.page("adapters.html", listed=listed, deleted=deleted, aliases_shown=ALIASES_SHOWN, places=places)


__all__ = ["ALIASES_SHOWN", "adapters", "router"]

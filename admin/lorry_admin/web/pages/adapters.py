"""A tenant's adapters."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from lorry.client.admin.adapters import list_adapters
from lorry_admin.web.summaries import AT_ONCE, is_served, place_word, places_of
from lorry_admin.web.visits import Visiting

router = APIRouter()
ALIASES_SHOWN = 4


@router.get("/tenants/{tenant}/adapters")
async def adapters(visit: Visiting) -> Response:
    deleted = visit.request.query_params.get("deleted") == "1"
    listed = await visit.listed(list_adapters(visit.tenant, show_deleted=deleted, full=True))
    return visit.page("adapters.html", listed=listed, deleted=deleted, aliases_shown=ALIASES_SHOWN)


@router.get("/tenants/{tenant}/adapters.json")
async def live(visit: Visiting) -> Response:
    """Where the adapters of one page of the list are, by the adapter's name: calls of engines, that the list does not
    wait for."""
    listed = await visit.listed(list_adapters(visit.tenant, full=True))
    caller, gate = visit.caller(), asyncio.Semaphore(AT_ONCE)

    async def place(version: str) -> str:
        async with gate:
            return place_word(await places_of(caller, version))

    served = {one.name: one.newest_version.name for one in listed.rows if is_served(one.newest_version)}
    places = await asyncio.gather(*(place(version) for version in served.values()))
    return JSONResponse({name: {"place": found} for name, found in zip(served, places, strict=True)})


__all__ = ["ALIASES_SHOWN", "adapters", "live", "router"]

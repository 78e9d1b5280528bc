"""A tenant's adapters."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from lorry.client.admin.adapters import list_adapters
from lorry_admin.web.summaries import AT_ONCE, is_served, place_word, places_of, summaries_of, use_of
from lorry_admin.web.visits import Visiting

router = APIRouter()


@router.get("/tenants/{tenant}/adapters")
async def adapters(visit: Visiting) -> Response:
    deleted = visit.request.query_params.get("deleted") == "1"
    listed = await visit.listed(list_adapters(visit.tenant, show_deleted=deleted))
    rows = await summaries_of(visit, listed.rows)
    return visit.page("adapters.html", listed=listed, rows=rows, deleted=deleted)


@router.get("/tenants/{tenant}/adapters.json")
async def live(visit: Visiting) -> Response:
    """Where the adapters of one page of the list are, and when they were used last: by the adapter's name. Engines are
    asked, which the list does not wait for."""
    listed = await visit.listed(list_adapters(visit.tenant))
    rows = await summaries_of(visit, listed.rows)
    use = await use_of(visit)
    caller, gate = visit.caller(), asyncio.Semaphore(AT_ONCE)

    async def place(name: str) -> str:
        async with gate:
            return place_word(await places_of(caller, name))

    served = [row.newest.name for row in rows if row.newest is not None and is_served(row.newest)]
    places = dict(zip(served, await asyncio.gather(*(place(name) for name in served)), strict=True))
    found = {}
    for row in rows:
        name = row.adapter.name
        used = use.last.get(name, "")[:10] or ("not in 30 days" if use.whole else "")
        found[name] = {"place": places.get(row.newest.name, "") if row.newest else "", "used": used}
    return JSONResponse(found)


__all__ = ["adapters", "live", "router"]

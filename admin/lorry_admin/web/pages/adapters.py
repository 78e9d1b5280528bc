"""A tenant's adapters."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from lorry.client.admin.adapters import list_adapters
from lorry.client.admin.differences import state_word
from lorry_admin.web.formats import alias_words, size
from lorry_admin.web.summaries import Summary, place_in, residency_of, summaries_of, use_of
from lorry_admin.web.visits import Visiting

router = APIRouter()
TOLD_AT_ONCE = 8
"""Adapters of which the list waits for everything; a longer one is told the rest by the page's script."""


@router.get("/tenants/{tenant}/adapters")
async def adapters(visit: Visiting) -> Response:
    deleted = visit.request.query_params.get("deleted") == "1"
    listed = await visit.listed(list_adapters(visit.tenant, show_deleted=deleted))
    told = len(listed.rows) <= TOLD_AT_ONCE or visit.request.query_params.get("details") == "1"
    rows = await summaries_of(visit, listed.rows) if told else [Summary(one, None, (), False) for one in listed.rows]
    found = await residency_of(visit)
    places = {row.adapter.name: place_in(found, row.newest) for row in rows}
    return visit.page("adapters.html", listed=listed, rows=rows, deleted=deleted, told=told, places=places)


@router.get("/tenants/{tenant}/adapters.json")
async def live(visit: Visiting) -> Response:
    """What the adapters of one page of the list are, where, and when they were used last, by the adapter's name: calls
    for each of them that a long list does not wait for."""
    listed = await visit.listed(list_adapters(visit.tenant))
    rows = await summaries_of(visit, listed.rows)
    use = await use_of(visit)
    places = await residency_of(visit)
    found = {}
    for row in rows:
        name = row.adapter.name
        used = use.last.get(name, "")[:10] or ("not in 30 days" if use.whole else "")
        found[name] = {"place": place_in(places, row.newest), "used": used, **_told(row)}
    return JSONResponse(found)


def _told(row: Summary) -> dict[str, object]:
    aliases = [alias_words(alias) for alias in row.aliases] + (["and more"] if row.more else [])
    if row.newest is None:
        return {"state": "", "aliases": aliases}
    newest = row.newest
    return {
        "state": state_word(newest),
        "reason": newest.state_reason,
        "version": newest.version,
        "aliases": aliases,
        "rank": newest.rank or "–",
        "size": size(newest.size_bytes),
        "base": newest.base.removeprefix("models/"),
    }


__all__ = ["TOLD_AT_ONCE", "adapters", "live", "router"]

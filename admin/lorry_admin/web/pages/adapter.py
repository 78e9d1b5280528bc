"""One adapter: its versions, aliases with their rollouts, pin, and its end."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.adapters import delete_adapter, get_adapter, undelete_adapter, update_adapter
from lorry.client.admin.aliases import list_aliases
from lorry.client.admin.fleet import list_rollouts
from lorry.client.admin.grants import list_pins
from lorry.client.admin.versions import list_versions
from lorry.errors import LorryError
from lorry_admin.web.summaries import is_served, place_word, places_of, requests_of
from lorry_admin.web.visits import Posted, Visit, Visiting

router = APIRouter()
VERSIONS_SHOWN = 10
ALIASES_MAX = 50
ROLLOUTS_SHOWN = 5
PINS_MAX = 1000
_ADAPTER = "/tenants/{tenant}/adapters/{adapter}"


@router.get(_ADAPTER)
async def show(visit: Visiting, adapter: str) -> Response:
    name = f"tenants/{visit.tenant}/adapters/{adapter}"
    found = await visit.ask(get_adapter(name, full=True))
    if found.HasField("delete_time"):
        return visit.page("adapter_deleted.html", found=found, adapter=adapter)
    versions, (aliases, more), (rollouts, _), pin, requests = await asyncio.gather(
        visit.listed(list_versions(name), size=VERSIONS_SHOWN),
        visit.first(list_aliases(name), ALIASES_MAX),
        visit.first(list_rollouts(name), ROLLOUTS_SHOWN),
        _pin(visit, name),
        _requests(visit, name),
    )
    served = [one for one in versions.rows if is_served(one)]
    caller = visit.caller()
    places = await asyncio.gather(*(places_of(caller, one.name) for one in served[:5]))
    return visit.page(
        "adapter.html",
        found=found,
        adapter=adapter,
        versions=versions,
        served=served,
        aliases=aliases,
        more_aliases=more,
        rollouts=rollouts,
        pin=pin,
        requests=requests,
        places={one.version: place_word(place) for one, place in zip(served, places, strict=False)},
    )


@router.post(_ADAPTER + "/rename")
async def rename(post: Posted, adapter: str) -> Response:
    visit, name = post.visit, f"tenants/{post.visit.tenant}/adapters/{adapter}"
    await visit.ask(update_adapter(name, display_name=post.form.text("display_name"), etag=post.form.text("etag")))
    return visit.go(f"/{name}", "adapter-renamed")


@router.post(_ADAPTER + "/delete")
async def delete(post: Posted, adapter: str) -> Response:
    visit, name = post.visit, f"tenants/{post.visit.tenant}/adapters/{adapter}"
    await visit.ask(delete_adapter(name, etag=post.form.text("etag")))
    return visit.go(f"/{name}", "adapter-deleted")


@router.post(_ADAPTER + "/undelete")
async def undelete(post: Posted, adapter: str) -> Response:
    visit, name = post.visit, f"tenants/{post.visit.tenant}/adapters/{adapter}"
    await visit.ask(undelete_adapter(name, etag=post.form.text("etag")))
    return visit.go(f"/{name}", "adapter-undeleted")


async def _pin(visit: Visit, name: str) -> object:
    """None where there is none, or the role may not read pins."""
    try:
        pins, _ = await visit.whole(list_pins(visit.tenant), PINS_MAX)
    except LorryError:
        return None
    return next((pin for pin in pins if pin.version.startswith(f"{name}/versions/")), None)


async def _requests(visit: Visit, name: str) -> int | None:
    """None where the ledger cannot be asked now: the page stands without it."""
    try:
        return await requests_of(visit, name)
    except LorryError:
        return None


__all__ = [
    "ALIASES_MAX",
    "PINS_MAX",
    "ROLLOUTS_SHOWN",
    "VERSIONS_SHOWN",
    "delete",
    "rename",
    "router",
    "show",
    "undelete",
]

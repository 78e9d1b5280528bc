"""One version: its report, files and places; and two of them side by side."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from lorry.client.admin.differences import differences
from lorry.client.admin.versions import (
    deprecate_version,
    evict_version,
    get_version,
    preload_version,
    quarantine_version,
)
from lorry.errors import InvalidRequest
from lorry_admin.web.summaries import is_served, place_word, places_of
from lorry_admin.web.visits import Post, Posted, Visiting

router = APIRouter()
_VERSION = "/tenants/{tenant}/adapters/{adapter}/versions/{number}"
PRELOAD_S = 15.0


@router.get(_VERSION)
async def show(visit: Visiting, adapter: str, number: str) -> Response:
    name = f"tenants/{visit.tenant}/adapters/{adapter}/versions/{number}"
    found = await visit.ask(get_version(name))
    residency = await places_of(visit.caller(), name) if is_served(found) else None
    return visit.page(
        "version.html",
        found=found,
        adapter=adapter,
        residency=residency,
        place=place_word(residency),
        served=is_served(found),
        failed=[check for check in found.checks if check.outcome != "pass"],
    )


@router.get("/tenants/{tenant}/adapters/{adapter}/diff")
async def diff(visit: Visiting, adapter: str) -> Response:
    numbers = [visit.request.query_params.get(side, "") for side in ("a", "b")]
    if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers):
        raise InvalidRequest.field("a", "give the numbers of two versions")
    bare = f"tenants/{visit.tenant}/adapters/{adapter}"
    a, b = await asyncio.gather(*(visit.ask(get_version(f"{bare}/versions/{int(number)}")) for number in numbers))
    return visit.page("diff.html", adapter=adapter, a=a, b=b, found=differences(a, b))


@router.post(_VERSION + "/quarantine")
async def quarantine(post: Posted, adapter: str, number: str) -> Response:
    name = _name(post, adapter, number)
    await post.visit.ask(quarantine_version(name, post.form.text("reason")))
    return post.visit.go(f"/{name}", "version-quarantined")


@router.post(_VERSION + "/deprecate")
async def deprecate(post: Posted, adapter: str, number: str) -> Response:
    name = _name(post, adapter, number)
    await post.visit.ask(deprecate_version(name, post.form.text("reason")))
    return post.visit.go(f"/{name}", "version-deprecated")


@router.post(_VERSION + "/preload")
async def preload(post: Posted, adapter: str, number: str) -> Response:
    name = _name(post, adapter, number)
    await post.visit.ask(preload_version(name, wait_s=PRELOAD_S))
    return post.visit.go(f"/{name}", "version-loaded")


@router.post(_VERSION + "/evict")
async def evict(post: Posted, adapter: str, number: str) -> Response:
    name = _name(post, adapter, number)
    await post.visit.ask(evict_version(name))
    return post.visit.go(f"/{name}", "version-evicted")


@router.get("/tenants/{tenant}/adapters/{adapter}/versions")
async def none(visit: Visiting, adapter: str) -> Response:
    return RedirectResponse(f"/tenants/{visit.tenant}/adapters/{adapter}", status_code=303)


def _name(post: Post, adapter: str, number: str) -> str:
    return f"tenants/{post.visit.tenant}/adapters/{adapter}/versions/{number}"


__all__ = ["PRELOAD_S", "deprecate", "diff", "evict", "none", "preload", "quarantine", "router", "show"]

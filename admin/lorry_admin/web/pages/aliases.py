"""Aliases of an adapter: set, canary, promote, roll back."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.aliases import (
    delete_alias,
    list_alias_revisions,
    promote_canary,
    rollback_alias,
    set_alias,
    set_canary,
)
from lorry.errors import InvalidRequest
from lorry_admin.web.visits import Post, Posted, Visiting

router = APIRouter()
ADAPTER = "/tenants/{tenant}/adapters/{adapter}"


@router.post(ADAPTER + "/aliases")
async def put(post: Posted, adapter: str) -> Response:
    form, name = post.form, _adapter(post, adapter)
    await post.visit.ask(set_alias(name, form.text("alias"), form.whole("version"), etag=form.text("etag")))
    return post.visit.go(f"/{name}", "alias-set")


@router.get(ADAPTER + "/aliases/{alias}")
async def past(visit: Visiting, adapter: str, alias: str) -> Response:
    """What it pointed at, newest first."""
    name = f"tenants/{visit.tenant}/adapters/{adapter}@{alias}"
    listed = await visit.listed(list_alias_revisions(name))
    return visit.page("alias.html", adapter=adapter, alias=alias, listed=listed)


@router.post(ADAPTER + "/aliases/{alias}/canary")
async def canary(post: Posted, adapter: str, alias: str) -> Response:
    form, name = post.form, _adapter(post, adapter)
    permille = form.optional_whole("permille")
    if permille is None:
        part = form.optional_number("percent")
        if part is None:
            raise InvalidRequest.field("percent", "is missing; give 0.1 to 99.9")
        permille = round(part * 10)
    await post.visit.ask(set_canary(f"{name}@{alias}", form.whole("version"), permille, etag=form.text("etag")))
    return post.visit.go(f"/{name}", "canary-set")


@router.post(ADAPTER + "/aliases/{alias}/promote")
async def promote(post: Posted, adapter: str, alias: str) -> Response:
    name = _adapter(post, adapter)
    await post.visit.ask(promote_canary(f"{name}@{alias}", etag=post.form.text("etag")))
    return post.visit.go(f"/{name}", "canary-promoted")


@router.post(ADAPTER + "/aliases/{alias}/rollback")
async def roll_back(post: Posted, adapter: str, alias: str) -> Response:
    name = _adapter(post, adapter)
    await post.visit.ask(rollback_alias(f"{name}@{alias}", etag=post.form.text("etag")))
    return post.visit.go(f"/{name}", "alias-rolled-back")


@router.post(ADAPTER + "/aliases/{alias}/delete")
async def delete(post: Posted, adapter: str, alias: str) -> Response:
    name = _adapter(post, adapter)
    await post.visit.ask(delete_alias(f"{name}@{alias}", etag=post.form.text("etag")))
    return post.visit.go(f"/{name}", "alias-deleted")


def _adapter(post: Post, adapter: str) -> str:
    return f"tenants/{post.visit.tenant}/adapters/{adapter}"


__all__ = ["ADAPTER", "canary", "delete", "past", "promote", "put", "roll_back", "router"]

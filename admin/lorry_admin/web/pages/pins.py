"""A tenant's pins: which version of an adapter it gets."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.grants import clear_pin, set_pin
from lorry_admin.web.visits import Posted

router = APIRouter()


@router.post("/tenants/{tenant}/adapters/{adapter}/pin")
async def put(post: Posted, adapter: str) -> Response:
    visit, form = post.visit, post.form
    name = f"tenants/{visit.tenant}/adapters/{adapter}"
    await visit.ask(set_pin(visit.tenant, f"{name}/versions/{form.whole('version')}", mode=form.text("mode") or "hard"))
    return visit.go(f"/{name}", "pin-set")


@router.post("/tenants/{tenant}/adapters/{adapter}/unpin")
async def clear(post: Posted, adapter: str) -> Response:
    visit = post.visit
    name = f"tenants/{visit.tenant}/adapters/{adapter}"
    await visit.ask(clear_pin(visit.tenant, name))
    return visit.go(f"/{name}", "pin-cleared")


__all__ = ["clear", "put", "router"]

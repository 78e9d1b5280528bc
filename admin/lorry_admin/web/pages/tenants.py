"""Tenants, for the platform's administrators."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.grants import grant, list_grants, revoke_grant
from lorry.client.admin.tenants import create_tenant, get_tenant, list_tenants, update_tenant
from lorry_admin.web.visits import Posted, Visiting

router = APIRouter()


@router.get("/operator/tenants")
async def tenants(visit: Visiting) -> Response:
    return visit.page("tenants.html", listed=await visit.listed(list_tenants()))


@router.post("/operator/tenants")
async def create(post: Posted) -> Response:
    form = post.form
    wanted = create_tenant(form.text("tenant"), form.text("display_name"), weight=form.optional_whole("weight"))
    made = await post.visit.ask(wanted)
    return post.visit.go(f"/operator/{made.name}", "tenant-created")


@router.get("/operator/tenants/{tenant}")
async def show(visit: Visiting) -> Response:
    found, grants = await asyncio.gather(visit.ask(get_tenant(visit.tenant)), visit.listed(list_grants(visit.tenant)))
    return visit.page("tenant.html", found=found, grants=grants)


@router.post("/operator/tenants/{tenant}")
async def change(post: Posted) -> Response:
    """The name, its turns and where it may import from."""
    visit, form = post.visit, post.form
    await visit.ask(
        update_tenant(
            visit.tenant,
            display_name=form.text("display_name"),
            import_prefixes=form.lines("import_prefixes"),
            weight=form.optional_whole("weight"),
            etag=form.text("etag"),
        )
    )
    return visit.go(f"/operator/tenants/{visit.tenant}", "tenant-changed")


@router.post("/operator/tenants/{tenant}/suspend")
async def suspend(post: Posted) -> Response:
    """``suspended`` says which way."""
    visit, form = post.visit, post.form
    await visit.ask(update_tenant(visit.tenant, suspended=form.checked("suspended"), etag=form.text("etag")))
    return visit.go(f"/operator/tenants/{visit.tenant}", "tenant-changed")


@router.post("/operator/tenants/{tenant}/grants")
async def give(post: Posted) -> Response:
    visit = post.visit
    await visit.ask(grant(visit.tenant, post.form.text("resource")))
    return visit.go(f"/operator/tenants/{visit.tenant}", "grant-given")


@router.post("/operator/tenants/{tenant}/grants/{grant_id}/revoke")
async def revoke(post: Posted, grant_id: str) -> Response:
    visit = post.visit
    await visit.ask(revoke_grant(f"tenants/{visit.tenant}/grants/{grant_id}"))
    return visit.go(f"/operator/tenants/{visit.tenant}", "grant-revoked")


__all__ = ["change", "create", "give", "revoke", "router", "show", "suspend", "tenants"]

"""A tenant's limits with what is used of them. Setting them is a platform administrator's."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.quotas import delete_quota, list_quotas, set_quota
from lorry_admin.web.visits import Posted, Visiting

router = APIRouter()
LIMITS = {
    "requests_per_minute": ("Requests a minute", "refilled evenly; each gateway counts for itself"),
    "concurrency": ("Requests at one time", "each gateway counts for itself"),
    "queue_length": ("Waiting requests", "beyond those that run, before new ones are refused"),
    "tokens_per_month": ("Tokens a month", "prompt and output, calendar month in UTC, at all gateways together"),
    "max_tokens_cap": ("Output tokens of a request", "a request that asks for more gets so many"),
}


@router.get("/tenants/{tenant}/quotas")
async def quotas(visit: Visiting) -> Response:
    listed = await visit.listed(list_quotas(visit.tenant))
    return visit.page("quotas.html", listed=listed, limits=LIMITS)


@router.post("/tenants/{tenant}/quotas")
async def put(post: Posted) -> Response:
    visit, form = post.visit, post.form
    given = {name: form.optional_whole(name) for name in LIMITS}
    await visit.ask(set_quota(visit.tenant, adapter=form.text("adapter"), etag=form.text("etag"), **given))
    return visit.go(f"/tenants/{visit.tenant}/quotas", "quota-set")


@router.post("/tenants/{tenant}/quotas/{quota}/delete")
async def delete(post: Posted, quota: str) -> Response:
    visit = post.visit
    await visit.ask(delete_quota(f"tenants/{visit.tenant}/quotas/{quota}", etag=post.form.text("etag")))
    return visit.go(f"/tenants/{visit.tenant}/quotas", "quota-deleted")


__all__ = ["LIMITS", "delete", "put", "quotas", "router"]
